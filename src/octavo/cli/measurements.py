"""The commands of `octavo bench`."""

from __future__ import annotations

from octavo.cli.bench_serve import serve
from octavo.cli.curve import bench
from octavo.cli.kernels import kernels
from octavo.cli.latency import latency
from octavo.cli.peers import peers
from octavo.cli.prefixes import prefixes
from octavo.cli.sharing import sharing
from octavo.cli.throughput import throughput

for _measurement in (sharing, prefixes, throughput, latency, peers, kernels, serve):
    bench.command()(_measurement)
