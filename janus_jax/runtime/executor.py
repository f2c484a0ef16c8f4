"""Runs the instruction lists of a schedule: one pass over all instructions, everything dispatched asynchronously.

Each rank holds what its stages keep of micro-batches in flight, what has arrived, and running gradients.
Transfers carry lists of arrays:

    activation to FE of stage s        [h, inputs]         features of stage s - 1
    activation to FF of stage s        [ct, gx, inputs]    dE/dh' and dE/dx so far; nothing but inputs on the last
    gradient to BF (BFt) of stage s    [ghb, gxb, seconds]
    gradient to BE (BEh) of stage s    [lam, seconds]      no lam on the last

Where energy and forces of a stage are on different ranks, FE is run again there: `inputs` are features on
their way to such stages, `seconds` second-order parts of dL/dh on their way back. Elsewhere they are empty.
The loss enters at stage 0 when its forces are complete, and at the last stage with its energies.
"""

from collections import Counter
from typing import Any

import jax

from janus_jax.phases import Cut
from janus_jax.phases.tracing import Part
from janus_jax.runtime.programs import Programs
from janus_jax.runtime.sizes import apart
from janus_jax.runtime.transport import Transport
from janus_jax.schedule.dependencies import keys
from janus_jax.schedule.instructions import COMPUTE, RECEIVE, SEND, Instruction, Schedule, peer, virtual_stage
from janus_jax.schedule.order import global_order
from janus_jax.schedule.validate import Data, carried
from janus_jax.stages import Place
from janus_jax.typing import pytree

FORWARD = ("LM", "FE", "FF", "SAE", "SAF", "RAE", "RAF")


@pytree
class Message:
    """What travels with an instruction: lists of stacked arrays, and features or gradients by stage."""

    main: Any
    carry: dict[int, Any]


class Executor:
    """A schedule on the ranks of a layout; `run` is one step.

    Args:
        programs: the compiled programs of all stages, and the loss.
        forward: energies and forces only; nothing is kept for backward phases.
    """

    def __init__(self, schedule: Schedule, programs: Programs, transport: Transport, *, forward: bool = False):
        self.schedule, self.programs, self.layout = schedule, programs, programs.layout
        self.transport, self.forward = transport, forward
        self.order = [entry for entry in global_order(schedule) if not forward or entry[2].op in FORWARD]
        self.named = [dict(keys(list_, schedule, k)) for k, list_ in enumerate(schedule.devices)]
        self.apart = apart(schedule)
        self.loads = Counter(  # how often each rank reads each micro-batch
            (rank, key[2]) for rank, list_ in enumerate(self.named) for key in list_.values() if key[0] in ("FE", "FE*")
        )

    def run(self, params, batch, observe=None) -> "Step":
        """Dispatch one step; returns before it has been computed."""
        step = Step(self, params, batch)
        for rank, position, instruction in self.order:
            step.do(rank, position, instruction)
            if observe is not None:
                observe(step, rank, position, instruction)
        return step


class Step:
    """What ranks of this process hold during one step, and its results."""

    def __init__(self, owner: Executor, params: dict[tuple[int, int], list], batch):
        self.owner, self.schedule, self.programs = owner, owner.schedule, owner.programs
        self.params, self.batch = params, batch
        self.here = set(owner.layout.here)
        self.last = self.schedule.stages - 1
        self.held: dict[tuple[int, str, int, int], tuple[Cut, dict]] = {}
        self.loaded: dict[tuple[int, int], Any] = {}
        self.inbox: dict[tuple[int, Data], Message] = {}
        self.outbox: dict[tuple[int, Data], Message] = {}
        self.stash: dict[tuple, Any] = {}
        self.gradient: dict[tuple[int, str, int], list] = {}
        self.terms: dict[str, Any] = {}
        self.done: jax.Array | None = None
        self.loads_left = owner.loads.copy()

    def do(self, rank: int, position: int, instruction: Instruction) -> None:
        op, stage, micro = instruction
        if op in SEND:
            self._transfer(rank, instruction)
        elif op in RECEIVE:
            return  # done with its send, which is just before it in the order
        elif rank in self.here:
            if op == "LM":
                self._load(rank, micro)
            elif op in COMPUTE:
                name = self.owner.named[rank][position][0]
                getattr(self, "_" + name.replace("*", "_again"))(rank, stage, micro)

    def _load(self, rank: int, micro: int) -> None:
        graph, place, targets = self.programs.load(self.batch, rank, micro)
        self.loaded[rank, micro] = graph, place
        for kind, where in self.programs.loss_ranks.items():
            if where == rank and not self.owner.forward:
                self.stash[kind, micro] = graph, targets

    # transfers

    def _transfer(self, source: int, instruction: Instruction) -> None:
        stages = self.schedule.stages
        target = self.schedule.virtual_device(peer(instruction.op, instruction.stage, stages))
        data, transport = carried(instruction, stages), self.owner.transport
        if transport.local(source, target):
            if source in self.here:
                leaves, tree = jax.tree.flatten(self.outbox.pop((source, data)))
                self.inbox[target, data] = jax.tree.unflatten(tree, transport.copy(leaves, target))
            return
        if not {source, target} & self.here:
            return
        graph = self.batch.micro_batches[data[2]]
        like, tree = jax.tree.flatten(Message(*self.programs.message(data, graph)))
        leaves = jax.tree.leaves(self.outbox.pop((source, data))) if source in self.here else None
        moved = transport.exchange(leaves, like, source, target)
        if moved is not None:
            self.inbox[target, data] = jax.tree.unflatten(tree, moved)

    def _post(self, rank: int, kind: str, virtual: int, micro: int, main: Any, carry: dict[int, Any]) -> None:
        data = (kind, virtual, micro)
        box = self.inbox if self.schedule.virtual_device(virtual) == rank else self.outbox
        box[rank, data] = Message(main, carry)

    def _take(self, rank: int, kind: str, virtual: int, micro: int) -> Message:
        return self.inbox.pop((rank, (kind, virtual, micro)))

    def _virtual(self, op: str, stage: int) -> int:
        return virtual_stage(op, stage, self.schedule.stages)

    # phases

    def _run(self, rank: int, part: Part, op: str, stage: int, micro: int, arrives: Any) -> Any:
        """A program of a stage; `part` says whose trace it is from: "both", or "energy" or "forces" alone."""
        key = (rank, part, stage, micro)
        params = self.params[rank, stage]
        if op == "FE":
            cut, held = self.programs.cut(rank, part, stage, arrives), {}
        else:
            cut, held = self.held.pop(key)
        program = cut[op]
        sums = self.gradient.get((rank, part, stage))
        if sums is None and op in ("BF", "BFr", "BE", "BEw"):
            sums = self.programs.zeros(rank, stage)
        out, held, sums = program(params, held, arrives, sums)
        if sums is not None:
            self.gradient[rank, part, stage] = sums
        needed = held or op == "FE"
        if needed and not (self.owner.forward and (op == "FF" or part == "energy")):
            self.held[key] = cut, held
        self.done = program.done
        return out

    def _part(self, energy: bool) -> Part:
        return "both" if not self.schedule.recompute else "energy" if energy else "forces"

    def _inputs(self, rank: int, stage: int, micro: int, h: Any) -> tuple[Any, Place, tuple]:
        """What FE takes, and the micro-batch is dropped with its last reader."""
        graph, place = self.loaded[rank, micro]
        self.loads_left[rank, micro] -= 1
        if not self.loads_left[rank, micro]:
            del self.loaded[rank, micro]
        return h, place, (graph, self.programs.fixed(rank, stage))

    def _FE(self, rank: int, stage: int, micro: int) -> None:
        message = self._take(rank, "activation", stage, micro) if stage else Message((), {})
        h, carry = message.main, dict(message.carry)
        if stage in self.owner.apart:
            carry[stage] = h
        elif self.schedule.recompute and stage:
            self.stash["h", stage, micro] = h
        out = self._run(rank, self._part(True), "FE", stage, micro, self._inputs(rank, stage, micro, h))
        if stage == self.last:
            self.stash["E", micro], out = out, ()
        self._post(rank, "activation", stage + 1, micro, out, carry)

    def _FE_again(self, rank: int, stage: int, micro: int) -> None:
        virtual = self._virtual("FF", stage)
        message = self.inbox[rank, ("activation", virtual, micro)]
        kept = message.carry if stage in self.owner.apart else {stage: self.stash.pop(("h", stage, micro), ())}
        h = kept[stage]
        self._run(rank, "forces", "FE", stage, micro, self._inputs(rank, stage, micro, h))

    def _FF(self, rank: int, stage: int, micro: int) -> None:
        virtual = self._virtual("FF", stage)
        message = self._take(rank, "activation", virtual, micro)
        carry = {s: h for s, h in message.carry.items() if s != stage}
        if stage == self.last:
            ct = self.programs.ones(rank, self.batch.micro_batches[micro])
            gh, gx = self._run(rank, self._part(False), "FF", stage, micro, ct)
        else:
            ct, before = message.main
            gh, gx = self._run(rank, self._part(False), "FF", stage, micro, ct)
            gx = self.programs.add(before, gx)
        if stage:
            self._post(rank, "activation", virtual + 1, micro, (gh, gx), carry)
        else:
            self.stash["gx", micro] = gx

    def _BF(self, rank: int, stage: int, micro: int, op: str = "BF") -> None:
        virtual = self._virtual("BF", stage)
        if stage:
            message = self._take(rank, "gradient", virtual, micro)
            (ghb, gxb), carry = message.main, dict(message.carry)
        else:
            ghb, carry = (), {}
            found = self.stash.pop(("gx", micro)), self.stash.pop(("forces", micro))
            counts, terms = self.batch.counts[rank], self.terms.get("forces")
            gxb, self.terms["forces"] = self.programs.force_loss(rank, *found, counts, terms)
        out = self._run(rank, self._part(False), op, stage, micro, (ghb, gxb))
        if self.schedule.recompute:
            out, second = out
            if stage in self.owner.apart:
                carry[stage] = second
            elif stage:
                self.stash["second", stage, micro] = second
        main = () if stage == self.last else (out, gxb)
        self._post(rank, "gradient", virtual - 1, micro, main, carry)

    def _BFt(self, rank: int, stage: int, micro: int) -> None:
        self._BF(rank, stage, micro, "BFt")

    def _BFr(self, rank: int, stage: int, micro: int) -> None:
        self._run(rank, "both", "BFr", stage, micro, ())

    def _BE(self, rank: int, stage: int, micro: int, op: str = "BE") -> None:
        message = self._take(rank, "gradient", stage, micro)
        carry = {s: second for s, second in message.carry.items() if s != stage}
        lam = message.main
        if stage == self.last:
            found = self.stash.pop(("E", micro)), self.stash.pop(("energy", micro))
            counts, terms = self.batch.counts[rank], self.terms.get("energy")
            lam, self.terms["energy"] = self.programs.energy_loss(rank, *found, counts, terms)
        hb = self._run(rank, self._part(True), op, stage, micro, lam)
        if not stage:
            return
        if self.schedule.recompute:
            apart = stage in self.owner.apart
            hb = self.programs.add(hb, message.carry[stage] if apart else self.stash.pop(("second", stage, micro)))
        self._post(rank, "gradient", stage - 1, micro, hb, carry)

    def _BEh(self, rank: int, stage: int, micro: int) -> None:
        self._BE(rank, stage, micro, "BEh")

    def _BEw(self, rank: int, stage: int, micro: int) -> None:
        self._run(rank, "both", "BEw", stage, micro, ())
