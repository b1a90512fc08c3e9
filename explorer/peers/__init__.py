"""Other libraries' softmax, one adapter a file: `explorer compare` times them beside ours.

An adapter is a function of the form `explorer.model.peer.Prepare`, which the GPU's worker calls.
Other packages add peers by entry points of the group `softmax_explorer.peers`. A peer's library is
not imported until the worker loads its adapter.
"""

from explorer.peers.registry import chosen_peers, known_peers

__all__ = ["chosen_peers", "known_peers"]
