# SPDX-License-Identifier: Apache-2.0
"""The class that users make: a callback of Keras, a hook of sessions, and a way for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_large_model_support import (
    checks,
    device,
    keras_functions,
    parts,
    pictures,
    profiles,
)
from tensorflow_large_model_support.best import Best
from tensorflow_large_model_support.bodies import Body, Library
from tensorflow_large_model_support.choice import (
    IN,
    Settings,
    Side,
    parse_levels,
    serialized_levels,
)
from tensorflow_large_model_support.functions import Unrolled, with_batch_size
from tensorflow_large_model_support.graph import KEEPING, LOOPS, SPARE_RESULTS, Graph
from tensorflow_large_model_support.parts import Part, Plans
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.reading import read, variables_bytes
from tensorflow_large_model_support.rewriting import Added, rewrite
from tensorflow_large_model_support.simulator import Memory, Simulator
from tensorflow_large_model_support.timing import Timer
from tensorflow_large_model_support.tuner import Tuner

if TYPE_CHECKING:
    from matplotlib.figure import Figure

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook
_DONE = "tensorflow_large_model_support"  # a collection of each graph that was rewritten
GIB, MIB = 1 << 30, 1 << 20


def _side(end: str, option: str) -> property:
    """A property that takes a collection of scopes or types."""
    name = f"_{end}_by_".join(option.split("_"))

    def get(self: LMS) -> set[str]:
        return getattr(self._sides[end], option)

    def put(self: LMS, value: Collection[str]) -> None:
        setattr(self._sides[end], option, checks.names(name, value))

    return property(get, put)


def _flag(name: str) -> property:
    def get(self: LMS) -> bool:
        return self._flags[name]

    def put(self: LMS, value: bool) -> None:
        self._flags[name] = checks.truth(name, value)

    return property(get, put)


class Simulated(NamedTuple):
    """Runs of a graph without and with swapping, beside `variables` bytes that stay."""

    before: Memory
    after: Memory
    plan: Plan | None  # None: nothing is swapped
    distances: list[int]  # of each edge that may be swapped
    variables: int
    run: tuple[Part, Plans]

    def first_peaks(self) -> tuple[int, int]:
        """What TensorFlow's allocator will see at most, in bytes, without and with swapping."""
        main, plans = self.run
        before, after = (
            parts.first_peak(main, each, device.threads()) + self.variables for each in ({}, plans)
        )
        return before, after


class LMS(tf.keras.callbacks.Callback, SessionRunHook):
    """Swaps tensors of a model to host memory and back, by operations added to its graph.

    Called as TFLMS v1's class of this name was, it is that of the module `v1`.
    """

    def __new__(cls, *arguments: Any, **named: Any) -> LMS:
        if cls is LMS:
            from tensorflow_large_model_support import v1 as older

            if older.is_meant(arguments, named):
                return super().__new__(older.LMS)
        return super().__new__(cls)

    def __init__(
        self,
        swapout_threshold: int = -1,
        swapin_groupby: int = -1,
        swapin_ahead: int = -1,
        sync_mode: int = 0,
        serialization: Sequence[int | str] = (),
        serialization_by_size: float = 0,
        debug: bool = False,
        debug_level: int = 1,
        cpu_device: str = "/cpu:0",
        gpu_device: str | None = None,
        plan: str = "numbers",
    ) -> None:
        super().__init__()
        numbers = {
            "swapout_threshold": swapout_threshold,
            "swapin_groupby": swapin_groupby,
            "swapin_ahead": swapin_ahead,
        }
        threshold, groupby, ahead = (checks.tuned(*each) for each in numbers.items())
        self._wanted = Settings(threshold, groupby, ahead, checks.integer("sync_mode", sync_mode))
        if sync_mode not in range(4):
            raise ValueError(
                f"sync_mode is {sync_mode}, which is none of 0 (asynchronous), 1 (swap-outs are "
                "waited for), 2 (swap-ins), 3 (both)"
            )
        if plan not in ("numbers", "best"):
            raise ValueError(
                f"plan is {plan!r}, which is none of 'numbers' (the same for all tensors), 'best' "
                "(each tensor's own)"
            )
        self._best = plan == "best"
        if self._best and max(swapout_threshold, swapin_groupby, swapin_ahead) >= 0:
            raise ValueError(
                "plan='best' finds numbers for each tensor, so that there are none to give; leave "
                "swapout_threshold, swapin_groupby and swapin_ahead out"
            )
        self._serialization = parse_levels("serialization", serialization)
        self._serialization_by_size = checks.size("serialization_by_size", serialization_by_size)
        tells = checks.truth("debug", debug)
        self._debug_level = checks.integer("debug_level", debug_level) if tells else 0
        self._cpu_device = checks.device("cpu_device", cpu_device, "CPU")
        if gpu_device is not None:
            checks.device("gpu_device", gpu_device, "GPU")
        self._gpu_device = gpu_device
        self._sides = {"output": Side(), "input": Side()}
        self._remembered: dict[tuple[Any, ...], list[Plan] | None] = {}
        self._profile: profiles.Profile | None = None
        self._batch_size: int | None = None
        self._flags = {"is_training": True, "autotune_plot": False}
        self._autotune_gpu_mem: float | None = None
        self.most_tensors: int | None = None  # the first that are made; None: all
        self._simulated: Simulated | None = None
        self._limit: int | None = None  # of a simulated run

    excl_output_by_scopes = _side("output", "excl_scopes")
    incl_output_by_scopes = _side("output", "incl_scopes")
    excl_output_by_types = _side("output", "excl_types")
    incl_output_by_types = _side("output", "incl_types")
    excl_input_by_scopes = _side("input", "excl_scopes")
    incl_input_by_scopes = _side("input", "incl_scopes")
    excl_input_by_types = _side("input", "excl_types")
    incl_input_by_types = _side("input", "incl_types")

    is_training = _flag("is_training")
    autotune_plot = _flag("autotune_plot")

    @property
    def batch_size(self) -> int | None:
        """What an unknown leading dimension is."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        if value is not None and not 1 <= checks.integer("batch_size", value) < 1 << 31:
            raise ValueError(f"batch_size is {value}, which is no size of a batch; give 1 or more")
        self._batch_size = None if value is None else int(value)

    @property
    def autotune_gpu_mem(self) -> float | None:
        """GiB to tune for; None: those of the device."""
        return self._autotune_gpu_mem

    @autotune_gpu_mem.setter
    def autotune_gpu_mem(self, value: float | None) -> None:
        self._autotune_gpu_mem = None if value is None else checks.size("autotune_gpu_mem", value)

    @property
    def profile(self) -> profiles.Profile:
        """What simulated times are by: one that was set, or that of the device."""
        return self._profile or device.profile(self._gpu_device)

    @profile.setter
    def profile(self, value: str | profiles.Profile) -> None:
        self._profile = profiles.profile(value)

    # The ways in ---------------------------------------------------------------------------------

    def run(self, graph: tf.Graph | None = None, keras: bool = False) -> None:
        """Rewrite a graph before a session runs it: the default one, or Keras's."""
        if graph is None:
            graph = v1.keras.backend.get_session().graph if keras else v1.get_default_graph()
        if not isinstance(graph, tf.Graph):
            raise ValueError(f"graph is {graph!r}, which is no graph of TensorFlow's")
        empty = tf.executing_eagerly() and not graph.get_operations()
        if empty or isinstance(graph, tf.__internal__.FuncGraph):
            self._log("There is no graph of a session here. Nothing is swapped.")
            return
        if self._gpu_device in graph.get_collection(_DONE):
            self._log("The graph was rewritten before. It is left as it is.")
            return
        if graph.finalized:
            raise ValueError("the graph cannot be rewritten because it is final; run LMS before")
        operations = graph.get_operations()
        shapes = self._sized(operations, lambda size: with_batch_size(graph, size))
        self._rewrite(graph, shapes, variables_bytes(operations), whole=False)
        graph.add_to_collection(_DONE, self._gpu_device)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, a tf.function or what can become one, with its graphs rewritten."""
        if not callable(function):
            raise ValueError(f"{function!r} is no function; give one")
        if not hasattr(function, "get_concrete_function"):
            function = tf.function(function)
        return keras_functions.Rewritten(function, self._concrete)

    def _concrete(self, concrete: Any) -> keras_functions.Flat | None:
        unrolled = Unrolled(concrete)
        if unrolled.compiled:
            self._log(
                f"{len(unrolled.compiled)} calls are compiled by XLA and left as they are, as "
                f"{unrolled.compiled[0]}."
            )
        graph = unrolled.graph()
        operations = graph.get_operations()
        inputs = keras_functions.input_shapes(self.model)
        shapes = self._sized(operations, lambda size: unrolled.graph(size, inputs))
        if not self._rewrite(graph, shapes, unrolled.variables_bytes(), whole=True):
            return None
        return unrolled.function(graph.as_graph_def())

    def _sized(
        self, operations: Sequence[tf.Operation], make: Callable[[int], tf.Graph]
    ) -> tf.Graph | None:
        """What `make` makes of the batch size; None: there is none, or nothing that it is for."""
        if self.batch_size is None or not _is_open(operations):
            return None
        try:
            return make(self.batch_size)
        except ValueError as error:
            raise ValueError(
                f"batch_size is {self.batch_size}, which not every unknown leading dimension of "
                f"the graph can be ({error}); give another, or none"
            ) from None

    # A hook of sessions.
    def begin(self) -> None:
        self.run(v1.get_default_graph())

    # A callback of Keras.
    def on_train_begin(self, logs: Any = None) -> None:
        self._keras("train_function")

    def on_test_begin(self, logs: Any = None) -> None:
        self._keras("test_function")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._keras("predict_function")

    def _keras(self, name: str) -> None:
        model = self.model
        if not tf.executing_eagerly():
            keras_functions.in_new_session(self.run)
        elif model.run_eagerly:
            self._log("The model runs eagerly, without a graph. Nothing is swapped.")
        else:
            if getattr(model, "jit_compile", False):
                self._log("XLA, which chooses itself what lies where, is turned off.")
            keras_functions.put(model, name, self.function)

    # The work ------------------------------------------------------------------------------------

    def _rewrite(
        self, graph: tf.Graph, shapes: tf.Graph | None, variables: int, *, whole: bool
    ) -> bool:
        """Whether anything was to be swapped. `shapes` has the same ops, with more of the sizes."""
        began = time.perf_counter()
        host = device.host_bytes()
        seen = (shapes or graph).get_operations()
        found = read(seen, self._gpu_device, training=self.is_training)
        self._tell(found, variables)
        library = Library(graph, shapes)
        main = self._read_parts(found, seen, library, whole)
        plans = self._planned(main, seen, variables)
        if plans is None:
            if self._simulated is None or self._simulated.plan is None:
                self._simulate(main, {}, variables)
            return False
        plans = self._first(plans)
        memory = self._simulate(main, plans, variables)
        added = self._put(main, plans, graph, seen, library)
        for part in plans:
            self._tell_swaps(part.planner.graph, plans[part])
        self._log(f"Configuration: {plans[main].described}")
        self._log(
            f"Added {added.swap_outs + added.swap_ins} operations to the model "
            f"({added.swap_outs} swap-out operations ({memory.swapped_out / GIB:.2f} GiB) and "
            f"{added.swap_ins} swap-in operations ({memory.swapped_in / GIB:.2f} GiB))"
        )
        self._warn_of_host(memory, host)
        self._log(f"Editing model for LMS, took: {(time.perf_counter() - began) * 1000:.0f} ms")
        return True

    def _read_parts(
        self, graph: Graph, seen: Sequence[tf.Operation], library: Library, whole: bool
    ) -> Part:
        """The graph, with the functions that it runs in loops, branches and calls."""
        tree = _Tree("the graph", graph, None)
        todo = [(tree, seen)]
        every = [tree]
        for parent, operations in todo:  # grows meanwhile
            for number, operation in enumerate(operations):
                for body in library.of(operation):
                    child = _Tree(body.name, read(body.operations, self._gpu_device), body)
                    parent.within.setdefault(number, []).append(child)
                    todo.append((child, body.operations))
                    every.append(child)
        ops = [op._replace(inputs=(), after=()) for each in every for op in each.graph.ops]
        self._check_names(Graph(ops) if len(every) > 1 else graph)
        return tree.part(lambda graph, main: self._planner(graph, whole or not main), main=True)

    def _check_names(self, graph: Graph) -> None:
        """`graph` has all ops there are."""
        for end, side in self._sides.items():
            side.check(graph, f"{{}}_{end}_by_{{}}")

    def _planner(self, graph: Graph, whole: bool) -> Planner:
        return Planner(
            graph, self._sides["output"].takes(), self._sides["input"].takes(), whole=whole
        )

    def _first(self, plans: Plans) -> Plans:
        """Plans for no more than `most_tensors`."""
        if self.most_tensors is None:
            return plans
        left = self.most_tensors
        kept = {}
        for part, plan in plans.items():
            level = part.planner.graph.level
            swaps = sorted(plan.swaps, key=lambda swap: (level[swap.tensor.op], swap.tensor))
            kept[part] = replace(plan, swaps=tuple(swaps[:left]))
            left -= len(kept[part].swaps)
        return kept

    def _put(
        self, main: Part, plans: Plans, graph: tf.Graph, seen: Sequence[tf.Operation],
        library: Library,
    ) -> Added:  # fmt: skip
        operations = [graph.get_operation_by_name(operation.name) for operation in seen]
        added = [rewrite(graph, operations, plans[main], self._cpu_device)]
        for part, plan in plans.items():
            if part is not main and (plan.swaps or plan.chain):
                self._log(f"{len(plan.swaps)} tensors are swapped within {part.name}.")
                added.append(library.rewrite(part.source, plan, self._cpu_device))
        library.put()
        return Added(*map(sum, zip(*added, strict=True)))

    def _simulate(self, main: Part, plans: Plans, variables: int) -> Memory:
        before = parts.run(main, {})
        after = parts.run(main, plans) if plans else before
        others = [parts.run(part, plans) for part in plans if part is not main]
        after = after._replace(
            swapped_out=sum(each.swapped_out for each in (after, *others)),
            swapped_in=sum(each.swapped_in for each in (after, *others)),
        )
        distances = [each for part in main.all() for each in part.planner.distances()]
        run = main, plans
        self._simulated = Simulated(before, after, plans.get(main), distances, variables, run)
        if self.autotune_plot:
            self._draw()
        return after

    def _draw(self) -> None:
        """Training does without."""
        try:
            files = pictures.save(self.plan())
        except (ImportError, OSError) as error:
            v1.logging.warning("[LMS][0] [Simulator] There are no pictures: %s", error)
            return
        self._simulator(f"Pictures: {', '.join(map(str, files))}")

    @property
    def simulated(self) -> Simulated:
        """Of the last graph that was rewritten; where none was, as all fit, of the last one.

        Raises ValueError before there is one."""
        if self._simulated is None:
            raise ValueError("nothing was simulated yet; run LMS on a graph first")
        return self._simulated

    def plan(self) -> dict[str, Figure]:
        """Pictures of what `simulated` is of, by name: without swapping, with where anything is
        swapped, and how far tensors are read."""
        seen = self.simulated
        drawn = {
            "nolms_simulator_mem_traces": pictures.traced(seen.before, "without LMS", self._limit)
        }
        threshold = None
        if seen.plan is not None:
            drawn[pictures.name_of(seen.plan)] = pictures.traced(
                seen.after, seen.plan.described, self._limit
            )
            threshold = None if seen.plan.each else seen.plan.settings.threshold
        drawn["distances"] = pictures.distances(seen.distances, threshold)
        return drawn

    @property
    def _tunes(self) -> bool:
        wanted = self._wanted
        if wanted.threshold >= 0 and wanted.sync_mode >= IN:
            return False
        return min(wanted.threshold, wanted.ahead, wanted.groupby) < 0

    @property
    def _instead(self) -> str:
        """What can be done where nothing can be tuned."""
        left = " and leave plan out" if self._best else ""
        return f"give swapout_threshold, swapin_ahead and swapin_groupby{left}"

    def _planned(self, main: Part, seen: Sequence[tf.Operation], variables: int) -> Plans | None:
        """What to swap, tuned where it was left open; None: nothing is to be swapped."""
        graph = main.planner.graph
        levels = serialized_levels(self._serialization, self._serialization_by_size, graph)
        every = list(main.all())
        loops = [op.name for part in every for op in part.planner.graph.ops if op.type in LOOPS]
        if not self._tunes:
            if loops:
                self._log(
                    f"{loops[0]} is a while-loop, inside of which nothing is swapped. "
                    "tf.while_loop(swap_memory=True) swaps what its iterations keep."
                )
            plans = {part: part.planner.plan(self._wanted) for part in every}
            return {**plans, main: main.planner.plan(replace(self._wanted, serialized=levels))}
        loops += [part.name for part in every if part is not main and _keeps(part)]
        if loops:
            raise ValueError(
                f"the numbers cannot be tuned because {loops[0]} is a while-loop, whose memory no "
                f"simulation knows; {self._instead}"
            )
        if _is_open(seen):
            raise ValueError(
                "the numbers cannot be tuned because the sizes of what is fed are not known; set "
                "batch_size"
            )
        self._check_sizes([part.planner for part in every])
        return self._tuned(main, replace(self._wanted, serialized=levels), variables)

    def _check_sizes(self, planners: Sequence[Planner]) -> None:
        """Raises ValueError where a simulated run would see next to nothing of the model."""
        tensors = [
            (planner.graph.ops[candidate.tensor.op], candidate.tensor.port)
            for planner in planners
            for candidate in planner.candidates
            if planner.graph.ops[candidate.tensor.op].type not in SPARE_RESULTS
        ]
        unknown = [op.name for op, port in tensors if op.outputs[port].size is None]
        if not unknown:
            return
        how_many = f"the sizes of {len(unknown)} of {len(tensors)} tensors are not known"
        example = f"as that of {unknown[0]}"
        if len(unknown) * 2 > len(tensors):
            raise ValueError(
                f"the numbers cannot be tuned because {how_many}, {example}; give what is fed a "
                "shape that says all dimensions but the first, and what is computed one by "
                f"tf.ensure_shape, or {self._instead}"
            )
        v1.logging.warning("[LMS][0] [Simulator] %s, %s: they count as nothing", how_many, example)

    def _tuned(self, main: Part, wanted: Settings, variables: int) -> Plans | None:
        began = time.perf_counter()
        total = device.device_bytes(self.autotune_gpu_mem, self._gpu_device, self._instead)
        if variables >= total:
            raise ValueError(
                f"the model cannot be tuned for {total / GIB:.3f} GiB because its variables, which "
                f"stay, take {variables / GIB:.3f}; give more memory"
            )
        limit = int((total - variables) * device.ratio())
        self._limit = limit
        profile = self.profile
        every = list(main.all())
        shapes = tuple(_shape_of(part.planner) for part in every)
        key = (shapes, self.batch_size, wanted, limit, profile)
        if key in self._remembered:
            self._log("The configuration of this model and batch size is known.")
            known = self._remembered[key]
            return None if known is None else dict(zip(every, known, strict=True))
        self._simulator(f"Memory for simulation: {limit / GIB:.2f} GiB")
        plans = self._found(main, wanted, limit, profile)
        self._simulator(f"Tuning took: {(time.perf_counter() - began) * 1000:.0f} ms")
        if plans is None:
            self._log("LMS is not necessary. Turned LMS off.")
        self._remembered[key] = None if plans is None else [plans[part] for part in every]
        return plans

    def _found(
        self, main: Part, wanted: Settings, limit: int, profile: profiles.Profile
    ) -> Plans | None:
        """None: it fits as it is."""
        open_ = max(wanted.threshold, wanted.ahead, wanted.groupby) < 0
        if open_ and parts.run(main, {}).peak <= limit:
            return None

        def tune(part: Part, simulator: Simulator, limit: int) -> Plan | None:
            own = wanted if part is main else replace(wanted, serialized=frozenset())
            return self._tuned_part(part.planner, simulator, own, limit, profile)

        plans = parts.tuned(main, limit, tune)
        if plans is None:
            raise ValueError(
                f"no configuration was found with which the model fits {limit / GIB:.2f} GiB; use "
                "a smaller batch, or serialization"
            )
        return plans

    def _tuned_part(
        self, planner: Planner, simulator: Simulator, wanted: Settings, limit: int,
        profile: profiles.Profile,
    ) -> Plan | None:  # fmt: skip
        timer = Timer(planner.graph, profile)
        tuner = Tuner(planner, simulator, timer, limit, self._simulator)
        found = tuner.tune(wanted)
        if found is None:
            return None
        if found.plan is None:
            return Plan(Settings(planner.graph.depth))
        if self._best:
            found = Best(planner, simulator, timer, limit).improve(found)
        without = tuner.unchanged().timing
        self._simulator(
            f"A step takes {found.timing.total / 1e6:.1f} ms, without swapping "
            f"{without.total / 1e6:.1f} ms, as {profile.name} would at best."
        )
        return found.plan

    # What it says --------------------------------------------------------------------------------

    def _log(self, message: str, level: int = 0) -> None:
        if level <= self._debug_level:
            v1.logging.info("[LMS][%d] %s", level, message)

    def _simulator(self, message: str) -> None:
        self._log(f"[Simulator] {message}")

    def _tell(self, graph: Graph, variables: int) -> None:
        self._log(f"The graph has {len(graph.ops)} vertices and {graph.edges} edges.")
        self._log(f"The graph has {variables / MIB:.2f} MiB of learning parameters.")
        sizes = graph.sizes()
        if sizes:
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            self._log(
                f"The largest GPU operation is {graph.ops[largest].name} consuming "
                f"{sizes[largest] / GIB:.2f} GiB"
            )
        self._log(f"The graph has {graph.depth} topological levels.")
        if self._debug_level:
            for level in range(graph.depth):
                count = graph.level.count(level)
                self._log(f"Level {level} has {count} operations.", 1)

    def _tell_swaps(self, graph: Graph, plan: Plan) -> None:
        if not self._debug_level:
            return
        for swap in plan.swaps:
            name = graph.ops[swap.tensor.op].name
            for swap_in in swap.ins:
                readers = ", ".join(graph.ops[edge.consumer].name for edge in swap_in.edges)
                triggers = ", ".join(graph.ops[op].name for op in swap_in.triggers) or "nothing"
                self._log(f"{name}:{swap.tensor.port} is out until {triggers}, for {readers}", 1)

    def _warn_of_host(self, memory: Memory, limit: int) -> None:
        if memory.host_peak > limit:
            mebibytes = -(-memory.host_peak // MIB)
            v1.logging.warning(
                "[LMS][0] %.2f GiB of host memory are needed, which is above TensorFlow's limit; "
                "set %s=%d",
                memory.host_peak / GIB, device.HOST_LIMIT, mebibytes,
            )  # fmt: skip


class _Tree:
    """A graph with the functions that its ops run, before there is a planner for each."""

    def __init__(self, name: str, graph: Graph, body: Body | None) -> None:
        self.name, self.graph, self.body = name, graph, body
        self.within: dict[int, list[_Tree]] = {}

    def part(self, planner: Callable[[Graph, bool], Planner], *, main: bool = False) -> Part:
        within = {
            number: [child.part(planner) for child in children]
            for number, children in self.within.items()
        }
        return Part(self.name, planner(self.graph, main), within, self.body)


def _keeps(part: Part) -> bool:
    """Whether tensors of each iteration stay, for the gradients."""
    return any(op.type in KEEPING for op in part.planner.graph.ops)


def _is_open(operations: Sequence[tf.Operation]) -> bool:
    """Whether the graph is fed, or reads, tensors with an unknown leading dimension."""
    return any(
        tensor.dtype != tf.resource and _leads_openly(tensor.shape)
        for operation in operations
        if operation.type in ("Placeholder", "PlaceholderWithDefault")
        or operation.type.startswith("IteratorGetNext")
        for tensor in operation.outputs
    )


def _leads_openly(shape: tf.TensorShape) -> bool:
    return shape.rank is None or bool(shape.rank and shape.dims[0].value is None)


def _shape_of(planner: Planner) -> int:
    """What two graphs with the same results of tuning have in common: all but names, and of those
    what they say of what may be swapped."""
    ops = tuple(op._replace(name="") for op in planner.graph.ops)
    return hash((ops, tuple(planner.candidates), planner.whole))
