"""The part of verifiers 0.4 that its tasksets and our world use, for tests without the package; and a taskset of it."""

METADATA = "Metadata-Version: 2.1\nName: verifiers\nVersion: 0.4.0\n"

STATE = """
from pydantic import BaseModel


class State(BaseModel):
    pass


def state_cls(cls):
    bases = [base for kind in cls.__mro__ for base in getattr(kind, "__orig_bases__", ())]
    found = [part for base in bases for part in getattr(base, "__args__", ())]
    return next((part for part in found if isinstance(part, type) and issubclass(part, State)), State)
"""

V1 = """
import functools, importlib, inspect, itertools
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from verifiers.v1.state import State, state_cls

A, B, C = TypeVar("A"), TypeVar("B"), TypeVar("C")


class Record(SimpleNamespace):
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return None


SystemMessage = functools.partial(Record, role="system")
UserMessage = functools.partial(Record, role="user")
AssistantMessage = functools.partial(Record, role="assistant")
ToolMessage = functools.partial(Record, role="tool")
ToolCall = TraceTask = AgentInfo = AgentConfig = MessageNode = Record


class TasksetConfig(BaseModel):
    id: str = ""


class TaskConfig(BaseModel):
    judges: list = []


class ToolsetConfig(BaseModel):
    pass


class TaskData(BaseModel):
    idx: int | None = None
    name: str | None = None
    prompt: Any = None
    system_prompt: str | None = None
    image: str | None = None


class SingleAgentEnv:
    pass


class Env:
    pass


class Trace:
    def __init__(self, task, state, agent):
        self.task, self.state, self.agent, self.nodes = task, state, agent, []
        self.rewards, self.metrics, self.is_completed, self.ok = {}, {}, False, False

    def stop(self, condition):
        self.stop_condition = condition

    @property
    def reward(self):
        return sum(reward.score * reward.weight for reward in self.rewards.values())

    @property
    def messages(self):
        return [node.message for node in self.nodes]

    @property
    def num_turns(self):
        return sum(node.sampled for node in self.nodes)

    @property
    def last_reply(self):
        return [node.message.content for node in self.nodes if node.sampled][-1] or ""


def tag(kind, **fields):
    def mark(function):
        setattr(function, kind, True)
        function.__dict__.update(fields)
        return function

    return mark


def reward(func=None, weight=1.0):
    return tag("reward", _vf_weight=weight) if func is None else tag("reward", _vf_weight=weight)(func)


def metric(func):
    return tag("metric")(func)


def stop(func):
    return tag("stop")(func)


def tool(func):
    return tag("tool")(func)


def tagged(owner, kind):
    names = [name for name in dir(type(owner)) if hasattr(getattr(type(owner), name), kind)]
    return [getattr(owner, name) for name in sorted(names)]


class Task(Generic[A, B, C]):
    NEEDS_CONTAINER = False

    def __init__(self, data, config=None):
        self.data, self.config, self.hash, self.key = data, config or TaskConfig(), "h", "k"

    async def setup(self, trace, runtime):
        pass

    async def finalize(self, trace, runtime):
        pass

    async def score(self, trace, runtime=None):
        available = {"task": self.data, "trace": trace}
        for kind in ("metric", "reward"):
            for hook in self.hooks(kind):
                names = inspect.signature(hook).parameters
                value = await hook(**{name: available[name] for name in names})
                if kind == "metric":
                    trace.metrics[hook.__name__] = value
                else:
                    trace.rewards[hook.__name__] = Record(score=value, weight=hook._vf_weight)

    def hooks(self, kind):
        return tagged(self, kind)

    @classmethod
    def toolsets(cls, config):
        return []


class Taskset(Generic[A, B]):
    def __init__(self, config):
        self.config = config

    def take(self, count):
        return itertools.islice(self.load(), count)

    @classmethod
    def toolsets(cls, config):
        return []


class Toolset(Generic[A, B]):
    TOOL_PREFIX = ""

    def __init__(self, config):
        self.config, self._now = config, None

    @property
    def state(self):
        return self._now

    @property
    def server_name(self):
        return self.TOOL_PREFIX or ""

    async def setup(self):
        pass

    async def setup_task(self, task):
        pass

    def _with_state(self, function):
        @functools.wraps(function)
        async def called(*args, **kwargs):
            self._now = await self._pull_state()
            value = await function(*args, **kwargs)
            await self._push_state(b"")
            return value

        return called

    def register(self, mcp):
        for function in tagged(self, "tool"):
            mcp.add_tool(self._with_state(function), name=function.__name__, description=function.__doc__)


def exported(name, kind):
    module = importlib.import_module(name)
    found = [getattr(module, key) for key in module.__all__]
    return next((item for item in found if isinstance(item, type) and issubclass(item, kind)), None)


def taskset_config_type(name):
    bases = exported(name, Taskset).__orig_bases__
    return next((part for part in bases[0].__args__ if issubclass(part, TasksetConfig)), TasksetConfig)


def load_taskset(config):
    return exported(config.id, Taskset)(config)


def environment_class(name):
    return exported(name, Env) or SingleAgentEnv
"""

TASKSET = '''
import verifiers.v1 as vf


class SumConfig(vf.TasksetConfig):
    size: int = 20
    with_tools: bool = False
    kind: str = "plain"


class SumData(vf.TaskData):
    answer: int


class SumState(vf.State):
    sums: list[int] = []


class Desk(vf.Toolset[vf.ToolsetConfig, SumState]):
    TOOL_PREFIX = "desk"

    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Adds two numbers."""
        self.state.sums.append(a + b)
        return a + b


class SumTask(vf.Task[SumData, SumState, vf.TaskConfig]):
    @vf.reward
    async def exact(self, task, trace) -> float:
        return float(trace.last_reply.strip() == str(task.answer))

    @vf.reward(weight=0.5)
    async def worked(self, trace) -> float:
        return float(bool(trace.state.sums))

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

    @vf.stop
    async def many_sums(self, trace: vf.Trace) -> bool:
        return len(trace.state.sums) > 2


class ToolTask(SumTask):
    @classmethod
    def toolsets(cls, config):
        return [Desk(vf.ToolsetConfig())]


class BoxTask(SumTask):
    @vf.reward
    async def looked(self, runtime) -> float:
        return 0.0


class OtherTask(SumTask):
    @vf.reward
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 9)


class LargeTask(SumTask):
    @vf.reward(weight=0.5)
    async def worked(self, trace) -> float:
        return 9.0


KINDS = {"plain": SumTask, "large": LargeTask, "tools": ToolTask, "box": BoxTask}


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for number in range(self.config.size):
            prompt = None if self.config.kind == "user" else f"What is {number} + 1?"
            data = SumData(prompt=prompt, system_prompt="Answer with a number.", answer=number + 1)
            mixed = {"mixed tools": ToolTask, "mixed rewards": OtherTask}.get(self.config.kind, SumTask)
            yield KINDS.get(self.config.kind, mixed if number % 2 else SumTask)(data)


__all__ = ["Sums"]
'''
