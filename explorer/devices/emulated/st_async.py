"""st.async: registers to shared memory, tracked by an mbarrier. PTX ISA, "st.async"."""

import numpy as np

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.addresses import bind_address
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.bulk_engine import SHARED_SPACES, BulkEngine, shared_place
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.program import Instruction, Operand, Vector
from explorer.devices.emulated.ptx_types import DTYPES


@binds("st.async")
def bind_st_async(binder: Binder, instruction: Instruction) -> Step:
    """st.async: registers to another block's shared memory, tracked by an mbarrier there."""
    mods = binder.modifiers(instruction)
    mods.take("async")
    mods.take("weak")
    mods.one_of(SHARED_SPACES)
    mods.one_of(("mbarrier::complete_tx::bytes",))
    ptx_type = mods.one_of(DTYPES)
    count = int(mods.one_of(("v2", "v4"), "v1")[1:])
    mods.finish()
    to, of, barrier_operand = instruction.operands
    items: tuple[Operand, ...] = of.items if isinstance(of, Vector) else (of,)
    sources = [binder.source(o, ptx_type) for o in items]
    destination, mbarrier = bind_address(binder, to), bind_address(binder, barrier_operand)
    machine = binder.machine
    machine.asynchronous.used = True
    engine = BulkEngine(machine, instruction)
    size = DTYPES[ptx_type].itemsize * count
    access = Access(instruction, size, "write")

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        values = np.stack([np.asarray(s.each(lanes)) for s in sources], axis=1)
        addresses, barriers = destination(lanes), mbarrier(lanes).tolist()
        for place in machine.shared_space.locate(addresses, lanes, access):
            assert place.shadow is not None
            place.shadow.store(place.index, place.lanes, access, now)
            kept = np.arange(lanes.count) if place.chosen is None else np.flatnonzero(place.chosen)
            for number, row in enumerate(kept.tolist()):
                lane = int(lanes.flat[row])
                one = Place(Lanes(lanes.flat[row : row + 1], lanes.shape, None),
                            place.index[number : number + 1], place.data, place.shadow)  # fmt: skip
                where = shared_place(machine, barriers[row], lane)
                engine.write_later(one, values[row : row + 1], where, lane, size, size)

    return step
