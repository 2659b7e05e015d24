"""Makes docs/rocketmq.md: every mqadmin command, broker.conf key and attribute of RocketMQ 5.5, and what it is here.

    python -m tests.support.rocketmq_page             write the page
    python -m tests.support.rocketmq_page --check     fail if it differs from the code

Commands are those that `tests/cluster/test_mqadmin.py` runs; keys are the fields of RocketMQ's configuration classes
(`rocketmq_keys.txt`), and what becomes of each comes from the code that reads broker.conf, like the attributes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aerobee_broker.config import BrokerConfig, setting_text
from aerobee_broker.config.rocketmq_conf import INSTEAD, ONLY_ROCKETMQ, PROMISES, ROCKETMQ_KEYS, WRITE_MODE_KEYS
from aerobee_broker.tables.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, Attribute
from aerobee_store.errors import ConfigError
from tests.support.mqadmin_commands import COMMANDS, UNSUPPORTED

PAGE = Path(__file__).parents[2] / "docs" / "rocketmq.md"
_KEYS: Final = Path(__file__).parent / "rocketmq_keys.txt"
_HEAD: Final = """# Beside RocketMQ

Every command of `mqadmin`, every key of `broker.conf` and every attribute of topics and groups in RocketMQ 5.5: the
same here, different, or refused. `make map` writes this page from the code and from the table of commands, which
`make test-cluster` runs with the released tool.
"""
_COMMANDS: Final = f"""## Commands of mqadmin

A request with a code that no broker of Aerobee knows is answered with 3, “{UNSUPPORTED.format("N")}”.
"""
_KEYS_HEAD: Final = """## Keys of broker.conf

A refused key stops the start with these words. Keys without effect, and keys that RocketMQ does not know, are named
in one warning at the start; `updateBrokerConfig` refuses them.
"""
_TOPICS: Final = """## Attributes of topics

A wrong name or value is refused with answer 1 as by RocketMQ, over gRPC with `BAD_REQUEST`. What a store of RocketMQ
has already stays as it is, and the start names what has no effect.
"""
_GROUPS: Final = "## Attributes of groups\n"
_REASONS: Final = (  # the first one of whose words the key has, in any case
    (
        "thread semaphore queuecapacity poolsize waittimemillsin executor disruptor epoll netty spinlock abslock",
        "no thread pools",
    ),
    ("rocksdb memtable combinecq combineassign", "no RocksDB"),
    ("dleger controller syncstateset epoch learner election actingmaster escape", "a lease chooses the master"),
    ("revive pop cks appendack appendck", "consumption is a journal in the log"),
    ("lite lmq", "lite topics are light queues with positions in the journal"),
    (
        "cold readahead inmemory swap mapinterval pagecache warm transfermsgbyheap",
        "the kernel's page cache has the files",
    ),
    ("metric", "figures are those of [metrics.md](metrics.md)"),
    ("compaction maxoffsetmapsize", "topics are not compacted"),
    ("acl auth usercache", "accounts are in a file: [security.md](security.md)"),
    (
        "hasend hahouse hatransfer hamax haflow slave replica heartbeat",
        "[replication.md](replication.md) has the settings of replicas",
    ),
    ("register namesrv nameserver split registration", "the registration with name servers has no settings"),
    ("timer", "the timer has the settings of the section `timer`"),
    (
        "recover dispatch reput consumequeue logic cq indexhigh flush commit",
        "the store chooses its own times and sizes",
    ),
    ("transaction", "transactions have the settings of the section `transactions`"),
)
_OTHER: Final = "an internal of RocketMQ's broker"


def of_commands() -> list[str]:
    """A row for each command."""
    rows = []
    for command in COMMANDS:
        if not command.is_refused:
            rows.append(f"| `{command.name}` | {'differs: ' if command.differs else 'equal'}{command.differs} |")
            continue
        words = "answer 3, " if "request type" in command.wanted else ""
        rows.append(f"| `{command.name}` | refused ({words}“{command.wanted}”): {command.differs} |")
    return rows


def of_keys() -> list[str]:
    """A row for each key of broker.conf."""
    defaults = {}
    for line in _KEYS.read_text().splitlines():
        _, name, default = line.split("\t")
        defaults[name] = default
    defaults |= dict.fromkeys((PROMISES.keys() | ROCKETMQ_KEYS.keys()) - defaults.keys(), "")
    return [f"| `{name}` | {_of_key(name, default)} |" for name, default in sorted(defaults.items())]


def _of_key(name: str, default: str) -> str:
    if name in PROMISES:
        accepted, instead = PROMISES[name]
        values = " or ".join(f"`{value}`" for value in accepted if value)
        return f"refused{f', except {values}' if values else ''}: {instead}"
    if name in ROCKETMQ_KEYS:
        setting, convert = ROCKETMQ_KEYS[name]
        equal = "equal, only here" if setting in ONLY_ROCKETMQ else "equal"
        if not default:
            return f"{equal}: `{setting}`"
        ours, theirs = setting_text(BrokerConfig.load().setting(setting)), setting_text(convert(default))
        without = "" if _same(ours, theirs) else f"; without the key {_shown(ours)}, RocketMQ {_shown(theirs)}"
        return f"{equal}: `{setting}`{without}"
    if name in INSTEAD or name in WRITE_MODE_KEYS:
        return f"differs: {INSTEAD.get(name, '`store.write_mode`')}"
    reason = next((reason for words, reason in _REASONS if any(word in name.lower() for word in words.split())), _OTHER)
    return f"differs: no effect, {reason}"


def _same(ours: str, theirs: str) -> bool:
    """Whether two texts of a setting mean the same."""
    try:
        return float(ours) == float(theirs)
    except ValueError:
        return ours.replace(" ", "") == theirs.strip("[]").replace(" ", "")


def _shown(text: str) -> str:
    return f"`{text}`" if text else "off"


def of_attributes(known: Mapping[str, Attribute]) -> list[str]:
    """A row for each attribute."""
    rows = []
    for name, attribute in sorted(known.items()):
        match attribute.values:
            case range() as numbers:
                last = "the largest" if numbers[-1] > 1 << 40 else f"{numbers[-1]:,}"
                values = f"{numbers[0]} to {last}"
            case frozenset() as texts:
                values = ", ".join(f"`{text}`" for text in sorted(texts))
            case _:
                values = "a text"
        if attribute.only is None:
            verdict = "equal"
        elif attribute.only:
            kept = ", ".join(f"`{text}`" for text in sorted(attribute.only))
            verdict = f"refused, except {kept}: {attribute.instead}"
        else:
            verdict = f"refused: {attribute.instead}"
        fixed = "" if attribute.changeable else "; fixed when the topic is created"
        rows.append(f"| `{name}` | {values}{fixed} | {verdict} |")
    return rows


def _section(head: str, columns: Sequence[str], rows: Sequence[str]) -> str:
    titles = f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
    return "\n".join((head, titles, *rows, ""))


def page() -> str:
    """The text of docs/rocketmq.md."""
    parts = [
        _HEAD,
        _section(_COMMANDS, ("Command", "Here"), of_commands()),
        _section(_KEYS_HEAD, ("Key", "Here"), of_keys()),
        _section(_TOPICS, ("Attribute", "Values", "Here"), of_attributes(TOPIC_ATTRIBUTES)),
        _section(_GROUPS, ("Attribute", "Values", "Here"), of_attributes(GROUP_ATTRIBUTES)),
    ]
    return "\n".join(parts)


def check_refusals() -> None:
    """Fail unless every key that the page calls refused stops the start, with the words of the page."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "broker.conf"
        for name, (_, instead) in PROMISES.items():
            file.write_text(f"{name}=something-else\n")
            try:
                BrokerConfig.load(rocketmq_conf=file)
                words = ""
            except ConfigError as error:
                words = str(error)
            if instead not in words:
                raise AssertionError(f"{name} is not refused with the words of the page: {words!r}")


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            print(f"{PAGE.name} differs from the code; run: make map", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
