"""The rules of a message: what is made from the table agrees with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto import v2
from aerobee_store import StoreConfig
from aerobee_store.records import message_rules as rules
from aerobee_store.records.message_rules import BrokenRuleError, TextRule, plain_bytes

TEXTS = [each for each in vars(rules).values() if isinstance(each, TextRule)]


def is_right(rule: TextRule, text: str) -> bool:
    try:
        rule.check(text)
    except BrokenRuleError as broken:
        return {rule.code: False, rule.size_code: False}[broken.code]
    return True


def test_every_rule_is_listed() -> None:
    assert len(TEXTS) == 8
    assert set(rules.OF_PROPERTY.values()) < set(TEXTS)


@pytest.mark.parametrize("rule", TEXTS, ids=lambda rule: rule.field)
def test_the_codes_are_those_of_the_protocol(rule: TextRule) -> None:
    assert v2.Code.Value(rule.code)
    assert not rule.size_code or v2.Code.Value(rule.size_code)


@given(st.data(), st.sampled_from(TEXTS))
def test_text_of_plain_bytes_needs_no_check(data: st.DataObject, rule: TextRule) -> None:
    """Faster ways ask no rule about such text."""
    plain = plain_bytes(rule).decode()
    text = data.draw(st.text(st.sampled_from(plain), min_size=1, max_size=80))
    assert is_right(rule, text) == (len(text) <= rule.size_max)


@given(st.text(st.sampled_from("ab |\t\x7f\x85\u00a0\u3000é\U0001f600-"), max_size=70), st.sampled_from(TEXTS))
def test_the_quick_way_of_a_rule_agrees_with_the_close_look(text: str, rule: TextRule) -> None:
    assert is_right(rule, text) == rule._is_right(text)


def test_the_default_limits_are_those_of_a_store(tmp_path: Path) -> None:
    """The client assumes them until a server names its own."""
    assert StoreConfig(directory=tmp_path).body_size_max == rules.BODY_SIZE_MAX


def test_a_limit_of_forty_days_is_written_without_an_exponent() -> None:
    """A person reads 3,456,000 s."""
    with pytest.raises(BrokenRuleError) as refused:
        rules.check_delivery_time(10_000_000_000_000, 0, 3_456_000.0)
    assert "more than 3,456,000 s ahead" in refused.value.reason
    with pytest.raises(BrokenRuleError) as refused:
        rules.check_delivery_time(-1, 0, 0.5)
    assert "more than 0.5 s ahead" in refused.value.reason
