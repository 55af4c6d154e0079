"""A plan for people: a small table and a bar."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from octavo.planner.plan import GroupPlan, Plan
from octavo.sizes import show_bytes

_WIDTH = 60
_PARTS = (("weights", "█", "blue"), ("workspace", "▓", "magenta"), ("requests", "▒", "green"))
_FREE = "░"


def plan_table(plan: Plan) -> Table:
    """Lay a plan out in lines of name and value."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _lines(plan):
        table.add_row(name, value)
    return table


def plan_bar(plan: Plan) -> Text:
    """Draw what fills the memory; what does not fit ends in an arrow."""
    weights, workspace = plan.weights_bytes or 0, (plan.workspace_bytes or 0) + plan.graph_bytes
    kv = plan.memory_needed_bytes - weights - workspace
    sizes = (weights, workspace, kv)
    bar, legend, used, total = Text(), Text(), 0, 0
    for (name, mark, colour), size in zip(_PARTS, sizes, strict=True):
        total += size
        end = min(_WIDTH, round(_WIDTH * total / max(1, plan.memory_bytes)))
        bar.append(mark * (end - used), colour)
        used = end
        if size:
            legend.append(f"{mark} {name}  ", colour)
    bar.append(_FREE * (_WIDTH - used))
    over = total > plan.memory_bytes
    bar.append("▶" if over else "", "red")
    bar.append("\n").append_text(legend).append("" if over else f"{_FREE} free")
    return bar.append(f"\n{show_bytes(total)} of {show_bytes(plan.memory_bytes)}")


def _lines(plan: Plan) -> list[tuple[str, str]]:
    lines = [("KV per token", f"{plan.kv_bytes_per_token:,} bytes")]
    if len(plan.groups) > 1:
        lines += [(name, f"{total:,} bytes") for name, total, _ in _kinds(plan)]
    sizes = ", ".join(dict.fromkeys(str(group.block_size) for group in plan.groups))
    lines += [
        ("weights", _size(plan.weights_bytes)),
        ("workspace, estimated", _size(plan.workspace_bytes)),
        *([("graphs, estimated", show_bytes(plan.graph_bytes))] if plan.graph_bytes else ()),
        ("KV pool", show_bytes(plan.kv_pool_bytes)),
        (f"  blocks of {sizes} tokens", f"{plan.blocks:,}"),
        ("  longest single text", f"{plan.tokens:,} tokens"),
        (f"a request of {plan.context_tokens:,} tokens", show_bytes(plan.kv_bytes_per_request)),
        *_held(plan),
        (_all(plan.requests), show_bytes(plan.kv_bytes_all_requests)),
        ("requests at once, at most", f"{plan.max_concurrent_requests:,}"),
        ("fits", "yes" if plan.fits else "no"),
    ]
    return lines + _money(plan)


def _kinds(plan: Plan) -> list[tuple[str, int, int]]:
    """Name each kind of layer, with its bytes a token and its bytes at the context length."""
    kinds: dict[int | None, list[GroupPlan]] = {}
    for group in plan.groups:
        kinds.setdefault(group.window, []).append(group)
    rows: list[tuple[str, int, int]] = []
    for window, groups in kinds.items():
        seen = "everything" if window is None else f"{window:,} tokens"
        layers = sum(group.layers for group in groups)
        who = "layer that sees" if layers == 1 else "layers that see"
        rows.append(
            (
                f"  {layers} {who} {seen}",
                sum(group.kv_bytes_per_token for group in groups),
                sum(group.kv_bytes_per_request for group in groups),
            )
        )
    return rows


def _held(plan: Plan) -> list[tuple[str, str]]:
    """Say what each kind of layer holds, and what a request needs for a while, if they differ."""
    lines: list[tuple[str, str]] = []
    if len(plan.groups) > 1:
        lines += [(name, show_bytes(held)) for name, _, held in _kinds(plan)]
    if plan.kv_bytes_peak_per_request > plan.kv_bytes_per_request:
        peak = show_bytes(plan.kv_bytes_peak_per_request)
        lines.append(("  while its prompt is computed", peak))
    return lines


def _money(plan: Plan) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if plan.egress_bits_per_s is not None:
        rate = f"KV sent at {plan.prefill_rate_per_s:g} requests/s"
        lines.append((rate, f"{plan.egress_bits_per_s / 1e12:.2f} Tbit/s"))
    if plan.cost_per_million_tokens is not None:
        lines.append(("a million output tokens", f"{plan.cost_per_million_tokens:.4f}"))
        plain = plan.cost_per_million_tokens_without_paging
        lines.append(("  without paging", f"{plain:.4f}"))
    if plan.fleet is not None:
        fleet = plan.fleet
        load = f"machines for {fleet.load_tokens_per_s:g} tokens/s"
        lines.append((load, _fleet(fleet.machines, fleet.price_per_hour)))
        plain_price = fleet.price_per_hour_without_paging
        lines.append(("  without paging", _fleet(fleet.machines_without_paging, plain_price)))
    return lines


def _all(requests: int) -> str:
    return "the one request" if requests == 1 else f"all {requests:,} requests"


def _fleet(machines: int, price: float | None) -> str:
    return f"{machines:,}" if price is None else f"{machines:,}, {price:.2f} an hour"


def _size(count: int | None) -> str:
    return "unknown" if count is None else show_bytes(count)
