"""Where a new group starts, and that the start is fixed once."""

import datetime
import time

import pytest

from queen import ids


def now_ms():
    """The present instant as ISO text, with a pause on both sides so that messages before and after differ by a millisecond."""
    time.sleep(0.01)
    text = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23]
    time.sleep(0.01)
    return text


def test_new_group_starts_at_the_end_by_default(broker, queue):
    # 22
    broker.push_ids(queue, ["old"], "p")
    broker.nothing(queue, group="g")
    broker.push_ids(queue, ["new"], "p")
    assert ids(broker.take(queue, group="g")) == ["new"]


def test_mode_all_starts_at_the_oldest_and_later_modes_change_nothing(broker, queue):
    # 23
    broker.push_ids(queue, ["a", "b"], "p")
    first = broker.take(queue, group="g", subscriptionMode="all", batch=1)
    assert ids(first) == ["a"]
    broker.ack(first["messages"][0])
    assert ids(broker.take(queue, group="g", subscriptionMode="new")) == ["b"]
    broker.push_ids(queue, ["c"], "p2")
    assert ids(broker.take(queue, group="g", subscriptionMode="new", subscriptionFrom="now")) == ["c"]


def test_mode_new_registered_first_is_not_changed_by_all(broker, queue):
    broker.push_ids(queue, ["old"], "p")
    broker.nothing(queue, group="g", subscriptionMode="new")
    broker.nothing(queue, group="g", subscriptionMode="all")
    broker.push_ids(queue, ["new"], "p")
    assert ids(broker.take(queue, group="g", subscriptionMode="all")) == ["new"]


@pytest.mark.parametrize("mode", ["new", "all", "new-only"])
def test_queue_mode_always_starts_at_the_oldest(broker, queue, mode):
    # 24
    broker.push_ids(queue, ["a"], "p")
    assert ids(broker.take(queue, subscriptionMode=mode, subscriptionFrom="now")) == ["a"]


def test_subscription_from_a_time_beats_the_mode(broker, queue):
    # 25
    broker.push_ids(queue, ["before"], "p")
    broker.push_ids(queue, ["before-2"], "p2")
    instant = now_ms()
    broker.push_ids(queue, ["after"], "p")
    broker.push_ids(queue, ["after-2"], "p2")
    answer = broker.take(queue, group="g", subscriptionMode="all", subscriptionFrom=instant + "Z", partitions=10)
    assert sorted(ids(answer)) == ["after", "after-2"]
    second = broker.take(queue, group="offset", subscriptionMode="new", subscriptionFrom=instant + "+00:00", partitions=10)
    assert sorted(ids(second)) == ["after", "after-2"]
    third = broker.take(queue, group="no-designator", subscriptionFrom=instant, partitions=10)
    assert sorted(ids(third)) == ["after", "after-2"]


def test_subscription_from_forms(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    tomorrow = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    broker.nothing(queue, group="future", subscriptionFrom=tomorrow, subscriptionMode="all")
    broker.nothing(queue, group="now", subscriptionFrom="NOW", subscriptionMode="all")
    assert ids(broker.take(queue, group="date", subscriptionFrom="2001-02-03")) == ["a"]
    assert ids(broker.take(queue, group="minute", subscriptionFrom="2001-02-03T04:05Z")) == ["a"]
    assert ids(broker.take(queue, group="zone", subscriptionFrom="2001-02-03T04:05:06.5+02:00")) == ["a"]
    assert ids(broker.take(queue, group="unparsable", subscriptionFrom="yesterday", subscriptionMode="all")) == ["a"]
    broker.nothing(queue, group="unparsable-new", subscriptionFrom="yesterday")


@pytest.mark.parametrize("mode,delivers", [
    ("from_beginning", True), ("ALL", True), ("anything", True), ("NEW-ONLY", False), ("new_only", False), ("NewOnly", False), ("New", False),
])
def test_spellings_of_the_mode(broker, queue, mode, delivers):
    # 26
    broker.push_ids(queue, ["old"], "p")
    if delivers:
        assert ids(broker.take(queue, group="g", subscriptionMode=mode)) == ["old"]
    else:
        broker.nothing(queue, group="g", subscriptionMode=mode)
        broker.push_ids(queue, ["new"], "p")
        assert ids(broker.take(queue, group="g", subscriptionMode=mode)) == ["new"]


def test_group_in_mode_new_gets_the_first_message_of_a_later_lane(broker, queue):
    # 27
    broker.push_ids(queue, ["old"], "p")
    broker.nothing(queue, group="g", subscriptionMode="new")
    broker.push_ids(queue, ["first"], "later")
    answer = broker.take(queue, group="g")
    assert (ids(answer), answer["partition"]) == (["first"], "later")


def test_first_pop_registers_the_group_even_when_the_queue_does_not_exist(broker, queue):
    broker.nothing(queue, group="g")
    broker.push_ids(queue, ["a"], "p")
    assert ids(broker.take(queue, group="g")) == ["a"]


def test_pinned_pop_of_a_new_group_starts_where_the_request_says(broker, queue):
    broker.push_ids(queue, ["old"], "p")
    broker.nothing(queue, "p", group="tail")
    assert ids(broker.take(queue, "p", group="start", subscriptionMode="all")) == ["old"]
    broker.nothing(queue, "p", group="future", subscriptionFrom="2901-01-01")


def test_default_mode_is_a_setting(own_broker, queue):
    broker = own_broker(env={"DEFAULT_SUBSCRIPTION_MODE": "all"})
    broker.push_ids(queue, ["old"], "p")
    assert ids(broker.take(queue, group="g")) == ["old"]
    broker.nothing(queue, group="explicit", subscriptionMode="new")


def test_registration_survives_a_kill(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["old"], "p")
    broker.nothing(queue, group="g")
    broker.restart("kill")
    broker.push_ids(queue, ["new"], "p")
    assert ids(broker.take(queue, group="g", subscriptionMode="all")) == ["new"]
