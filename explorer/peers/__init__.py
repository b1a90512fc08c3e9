"""Other people's softmax, one adapter a file: `explorer compare` times them beside ours.

An adapter is a function of the form `explorer.model.peer.Prepare`, which the GPU's worker calls; a
package of one's own adds more by entry points of the group `softmax_explorer.peers`. Nothing here
imports a peer's library until the worker loads its adapter.
"""

from explorer.peers.registry import chosen_peers, known_peers

__all__ = ["chosen_peers", "known_peers"]
