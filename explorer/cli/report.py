"""`explorer report`: one file with charts, tables and sources, which opens offline."""

from pathlib import Path
from typing import Annotated

from explorer.cli.options import AccuracyOrNone, Minimised, Storage, Study, StudyGpu, option
from explorer.cli.output import check_kept, say
from explorer.cli.problem import with_any_problem
from explorer.model.asked import AskedProblem
from explorer.model.errors import InvalidInput
from explorer.report.own_files import PAGE
from explorer.system.user_files import write_file
from explorer.tuning.objective import Goal, Objectives

_REMEDY = "name another --output"

LARGE_MB = 1.5
"""Above this a page is said to be large; one of a study of 2500 trials has 1.41 MB."""

Output = Annotated[
    Path, option("--output FILE.html", "The page to write; only another page of ours is replaced.")
]
Kept = Annotated[
    list[Path] | None,
    option(
        "--from FILE",
        "Show what a file keeps: a comparison, a journey or a tuned table, which may also be "
        "one that explorer table list shows. May be given several times, and with --cols.",
    ),
]


@with_any_problem
def report(
    asked: AskedProblem | None,
    kept: Kept = None,
    output: Output = Path("report.html"),
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    storage: Storage = None,
    study: Study = None,
    gpu: StudyGpu = None,
) -> None:
    """Write a page with charts of a study, a comparison, a journey or a tuned table.

    The page is one file, which opens offline in any browser. It takes the extra
    'softmax-explorer[report]'.
    """
    if asked is None and not kept:
        raise InvalidInput(
            "nothing to report on: give --cols 4096 for a study, or --from FILE for a comparison, "
            "a journey or a tuned table"
        )
    if output.suffix not in (".html", ".htm"):
        raise InvalidInput(f"output is {str(output)!r}; name a file that ends in .html")
    from explorer.report.charts import altair
    from explorer.report.kept import kept_page
    from explorer.report.page import page_html
    from explorer.report.study_page import study_page

    altair()
    check_kept(output, PAGE, _REMEDY)
    pages = [kept_page(path) for path in kept or ()]
    if asked is not None:
        from explorer.tuning import load_history, open_storage, searching

        goal = Goal.of(objectives, accuracy, study, gpu)
        opened = open_storage(storage, read_only=True, command=searching(asked, goal))
        history = load_history(opened, asked, goal)
        if history.view.passed_over:
            say(history.view.passed_over)
        pages.insert(0, study_page(history, storage))
    sections = [section for page in pages for section in page.sections]
    page = page_html(pages[0].title, " ".join(page.lead for page in pages), sections)
    write_file(output, page, _REMEDY)
    size = len(page.encode()) / 1e6
    large = "; a page of fewer files is smaller" if size > LARGE_MB and len(pages) > 1 else ""
    say(f"{output}: written, {size:.2f} MB{large}")
