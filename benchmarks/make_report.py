"""From the output of benchmarks to benchmarks/results/*.json and the tables of docs.

    python3 make_report.py store <raw.json> <result.json>
    python3 make_report.py store-select <bench_select.json> <dense_topk.json> <result.json>
    python3 make_report.py store-estimate <raw.json> <result.json>
    python3 make_report.py store-estimate-gpu <raw.json> <result.json>
    python3 make_report.py tables [<folder of results> [<folder of pages>]]

`store..` keeps the measurements (report_store.py). `tables` replaces what stands between the lines
`<!-- table NAME -->` and `<!-- end -->` in performance.md and in every page of notes/ in the folder
of pages. A table may stand in several pages; a table that no page shows, and a marker without a
table, are errors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import attention_report
import backward_report
import compile_report
import dense_files_report
import estimate_report
import gpu_report
import lowering_report
import python_report
import select_report
import topk_gpu_report
import training_report
from report_store import read_json, store, store_estimate, store_estimate_gpu, store_select
from report_text import Run

REPOSITORY = Path(__file__).resolve().parents[1]
BEGIN = re.compile(r"<!-- table (\S+) -->\n")
END = "<!-- end -->"

TABLES: dict[str, tuple[Callable[[Run], dict[str, str]], ...]] = {
    "compile": (compile_report.tables,),
    "lowering": (lowering_report.tables,),
    "dense": (lowering_report.dense_tables,),
    "set_algebra": (lowering_report.algebra_tables,),
    "dense_files": (dense_files_report.tables,),
    "attention_cpu": (attention_report.tables,),
    "attention_gpu": (gpu_report.tables, backward_report.tables),
    "select": (select_report.host_tables,),
    "select_gpu": (select_report.gpu_tables,),
    "topk_gpu": (topk_gpu_report.tables,),
    "training_gpu": (training_report.tables,),
    "python_cpu": (python_report.cpu_tables,),
    "python_gpu": (python_report.gpu_tables,),
    "estimate": (estimate_report.tables,),
    "estimate_gpu": (estimate_report.gpu_tables,),
    "estimate_gpu_backward": (lambda result: estimate_report.gpu_tables(result, "-backward"),),
}
"""What is made of each document of results."""


def replace_tables(page: Path, content: dict[str, str]) -> set[str]:
    """Writes each text between the markers of its name in the page; the names that it holds."""
    text = page.read_text(encoding="utf-8")
    written = ""
    names = set()
    at = 0
    while found := BEGIN.search(text, at):
        name, end = found[1], text.find(END, found.end())
        if end < 0 or name not in content:
            sys.exit(f"{page}: no table '{name}', or no line '{END}' behind it")
        written += f"{text[at : found.end()]}{content[name]}\n"
        names.add(name)
        at = end
    page.write_text(written + text[at:], encoding="utf-8")
    return names


def tables(results: Path, docs: Path) -> None:
    documents = {name: read_json(results / f"{name}.json") for name in TABLES}
    content: dict[str, str] = {}
    for name, makers in TABLES.items():
        for make in makers:
            content |= make(documents[name])
    of_estimates = (documents[f"estimate{kind}"] for kind in ("", "_gpu", "_gpu_backward"))
    content["estimate-summary-table"] = estimate_report.accuracy_table(*of_estimates)
    shown = set()
    for page in (docs / "performance.md", *sorted((docs / "notes").glob("*.md"))):
        shown |= replace_tables(page, content)
    if content.keys() - shown:
        sys.exit(f"{docs}: no page shows {', '.join(sorted(content.keys() - shown))}")
    compile_report.draw_if_possible(documents["compile"], docs / "images")
    training_report.draw_if_possible(documents["training_gpu"], docs / "images")


def main() -> None:
    verb, *paths = sys.argv[1], *map(Path, sys.argv[2:])
    verbs: dict[str, Callable[..., None]] = {
        "store": store,
        "store-select": store_select,
        "store-estimate": store_estimate,
        "store-estimate-gpu": store_estimate_gpu,
    }
    if verb == "tables":
        defaults = (REPOSITORY / "benchmarks" / "results", REPOSITORY / "docs")
        tables(*paths, *defaults[len(paths) :])
    else:
        verbs[verb](*paths)


if __name__ == "__main__":
    main()
