"""The expert kernels on a GPU: right, fast, and by how much.

    python bench/kernels.py correctness [--cases N]     500 random cases against float64
    python bench/kernels.py smoke                       the small set that bench/sanitize.sh runs under checkers
    python bench/kernels.py speed [--stock]             microseconds and bandwidth, beside vLLM's own experts
    python bench/kernels.py stock --backend NAME        vLLM's own experts alone
    python bench/kernels.py mapped                      the same over planes in host memory
    python bench/kernels.py counters                    what keeps the GEMMs' warps from issuing, by ncu
    python bench/kernels.py quick [--cubins DIR]        a small check and the speed of several builds side by side
    python bench/kernels.py activations [--sass]        what e4m3 activations would cost in accuracy; needs no GPU

Each takes ``--out FILE`` for a result file. Where the package is not installed: PYTHONPATH=runtime_ext/src.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import facts
import torch


def main() -> None:
    args = _parser().parse_args()
    if args.what != "activations" and not torch.cuda.is_available():
        sys.exit(f"bench/kernels.py {args.what} needs a CUDA GPU; torch {torch.__version__} sees none")
    start = time.monotonic()
    result = args.run(args)
    result["seconds"] = round(time.monotonic() - start, 1)
    if args.out:
        facts.write(args.out, {"benchmark": f"kernels {args.what}", **result})
    if result.get("failed"):
        sys.exit(1)


def _correctness(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import cases, correctness

    verdicts = []
    for case in cases.generate(args.cases, args.seed):
        verdicts.append(correctness.run(case))
        _print_failure(verdicts[-1])
    return _print_summary(correctness.summary(verdicts) | {"seed": args.seed})


def _smoke(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import cases, correctness

    if args.broken:
        from kernel_bench import broken

        broken.run(args.broken)
        return {}
    verdicts = []
    for case in cases.smoke():
        # Everything but the kernels runs on the CPU, so that a checker has nothing else to look at.
        verdicts.append(correctness.judge(correctness.prepare(case, "cpu"), poison=False))
        _print_failure(verdicts[-1])
    return _print_summary(correctness.summary(verdicts))


def _speed(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import speed, stock

    print(speed.HEADER)
    result = speed.measure(args.tokens)
    print(f"reads {result['read_gb_per_s']}, copy {result['copy_gb_per_s']:.0f} GB/s")
    print(f"host, microseconds a call: {result['host_microseconds']}")
    if args.stock:
        if args.out:  # what is measured is kept, whatever becomes of the rest
            facts.write(args.out, {"benchmark": "kernels speed", **result})
        torch.cuda.empty_cache()
        result["stock"] = stock.compare(args.tokens, args.backends, args.stock_seconds)
        result["ratio_to_stock"] = stock.ratios(result["tokens"], result["stock"])
        for tokens, one in result["ratio_to_stock"].items():
            stock_time = f"{one['backend']}, {one['microseconds']:.1f} us"
            print(f"{tokens:>6} tokens: {one['ratio']:.2f} times stock ({stock_time})")
    result["targets"] = speed.targets(result["tokens"], result.get("ratio_to_stock"))
    for name, one in result["targets"].items():
        print(f"target {name}: {one}")
    return result


def _stock(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import stock

    result = stock.measure(args.backend, args.tokens)
    print(f"{result['backend']} ({result['experts']}): {result['microseconds']}")
    return result


def _mapped(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import mapped

    return mapped.measure()


def _counters(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import counters

    if args.child:
        counters.run(args.tokens)
        return {}
    result = counters.measure(args.tokens)
    for one in result["kernels"]:
        counters.print_record(one)
    return result


def _quick(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import quick

    return quick.measure(args.cubins, args.tokens)


def _activations(args: argparse.Namespace) -> dict[str, Any]:
    from kernel_bench import activations, sass

    result = activations.measure()
    if args.sass:
        result["instructions"] = sass.fp8()
        for arch, kernels in result["instructions"].items():
            print(f"{arch}: {kernels}")
    return result


def _print_failure(verdict: Any) -> None:
    if verdict.failures:
        print(f"FAILED {verdict.case}: {'; '.join(verdict.failures)}", flush=True)


def _print_summary(found: dict[str, Any]) -> dict[str, Any]:
    print(
        f"{found['cases']} cases, {found['failed']} failed; relative error: largest {found['largest_error']:.3e} "
        f"({found['largest_error_case']}), median {found['median_error']:.3e}, of which rounding to bfloat16 alone "
        f"makes {found['median_unavoidable']:.3e}; allowed {found['tolerance']:.0e}; beyond such rounding at most "
        f"{found['largest_own_error']:.1e}, allowed {found['own_tolerance']:.0e}"
    )
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="correctness and speed of the expert kernels")
    commands = parser.add_subparsers(dest="what", required=True)

    def command(name: str, run: Any) -> argparse.ArgumentParser:
        one = commands.add_parser(name)
        one.add_argument("--out", type=Path, help="write a result file")
        one.set_defaults(run=run)
        return one

    one = command("correctness", _correctness)
    one.add_argument("--cases", type=int, default=500)
    one.add_argument("--seed", type=int, default=0)
    one = command("smoke", _smoke)
    one.add_argument("--broken", choices=("memcheck", "racecheck", "initcheck"), help="run what that checker must find")
    numbers = {"type": _numbers, "metavar": "N,N,..."}
    one = command("speed", _speed)
    one.add_argument("--tokens", **numbers, default="1,2,4,5,8,16,32,64,256,2048")
    one.add_argument("--stock", action="store_true", help="vLLM's own experts over the same calls; needs vLLM")
    one.add_argument("--backends", type=_names, default="auto,marlin,triton", help="vLLM's backends to try")
    one.add_argument("--stock-seconds", type=float, default=120, help="most that one backend may take")
    one = command("stock", _stock)
    one.add_argument("--backend", default="auto")
    one.add_argument("--tokens", **numbers, default="1,2,4,5,8,16,32,64,256,2048")
    command("mapped", _mapped)
    one = command("counters", _counters)
    one.add_argument("--tokens", **numbers, default="1,8,64,2048")
    one.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    one = command("quick", _quick)
    one.add_argument("--cubins", type=Path, help="folder of builds, <variant>/<source>.cubin")
    one.add_argument("--tokens", **numbers, default="1,2,4,5,8,16,64,256,2048")
    one = command("activations", _activations)
    one.add_argument("--sass", action="store_true", help="also what e4m3 compiles to; needs nvcc and nvdisasm on PATH")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
