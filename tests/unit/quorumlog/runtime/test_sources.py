from quorumlog.runtime.clock import Sources, now_ms


async def test_the_loops_clock_never_decreases() -> None:
    first = now_ms()
    assert now_ms() >= first


def test_a_seed_determines_all_sources() -> None:
    one, other = (Sources.seeded(7, lambda: 1_000) for _ in range(2))
    assert [one.uuid4() for _ in range(3)] == [other.uuid4() for _ in range(3)]
    assert one.random.random() == other.random.random()
    assert one.wall_ms() == 1_000


def test_real_sources_draw_different_uuids_and_read_the_wall_clock() -> None:
    sources = Sources.real()
    assert sources.uuid4() != sources.uuid4()
    assert sources.uuid4().version == 4
    assert sources.wall_ms() > 1_600_000_000_000
