"""What the documentation says is so: code that runs, pages in step with the code, links that lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from repository import ROOT

import hemiola
from hemiola.sched.policies import POLICIES, policy_from_text
from hemiola.simulator.rules import known_semantics
from hemiola.simulator.scenario import Scenario, load_scenario
from hemiola.trace.topologies import read_topology

PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
GUIDES = sorted((ROOT / "docs/guides").glob("*.md"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> Iterator[str]:
    """The fenced blocks of a language."""
    text = path.read_text(encoding="utf-8")
    for indent, block in re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
        yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def commands(path: Path) -> Iterator[list[str]]:
    """The calls of `hemiola` in a page, as words."""
    for block in blocks(path, "sh"):
        for name, value in re.findall(r"^(\w+)=(\S+)$", block, re.MULTILINE):
            block = block.replace(f"${name}", value)
        block = block.replace("$CLUSTER", "flat:hosts=1,gpus_per_host=1").replace("\\\n", " ")
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if "hemiola" in words:
                yield words[words.index("hemiola") + 1 :]


@pytest.mark.parametrize("page", [p for p in GUIDES if "```python" in p.read_text()], ids=name_of)
def test_python_in_the_guides_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for block in blocks(page, "python"):
        space: dict[str, Any] = {"__name__": "guide"}
        exec(compile(block, str(page), "exec", dont_inherit=True), space)
        for thing in list(space.values()):
            if isinstance(thing, type) and issubclass(thing, hemiola.Policy) and thing.__module__ == "guide":
                run_it(thing())


def run_it(policy: hemiola.Policy) -> None:
    jobs = hemiola.generate("generated:jobs=30,load=0.9,mix=muri", seed=1, gpus=32)
    cluster = read_topology("flat:hosts=4,gpus_per_host=8")
    run = hemiola.simulate(jobs, cluster, [policy]).runs[0]
    assert all(record.status == "finished" for record in run.records)


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_commands_name_flags_policies_and_clusters_that_exist(page: Path) -> None:
    from hemiola import cli

    for words in commands(page):
        command, *rest = words
        if command.startswith("-"):
            continue
        _, bound, _ = cli.app.parse_args([command, *rest], exit_on_error=False, print_error=False)
        for text in bound.arguments.get("policy", ()) if command in ("simulate", "league") else ():
            if ("." not in text.partition(":")[0] and ":" not in text) or text.partition(":")[0] in POLICIES:
                policy_from_text(text)
        given = bound.arguments.get("cluster", "")
        for cluster in [given] if isinstance(given, str) else given:
            if cluster.partition(":")[0] in ("flat", "leaf-spine", "fat-tree"):
                read_topology(cluster)


def test_clusters_in_the_guide_can_be_read(tmp_path: Path) -> None:
    page = ROOT / "docs/guides/your-cluster.md"
    for line in next(blocks(page, "sh")).splitlines():
        assert read_topology(line).gpus > 0
    (tmp_path / "cluster.toml").write_text(next(blocks(page, "toml")), encoding="utf-8")
    assert read_topology(str(tmp_path / "cluster.toml")).tiers == ("host", "rack", "cluster")


def test_the_guide_names_every_key_of_a_scenario(tmp_path: Path) -> None:
    page = ROOT / "docs/guides/simulate.md"
    text = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text.partition("## Scenario files")[2], re.MULTILINE)
    assert rows == list(msgspec.structs.asdict(Scenario()))
    (tmp_path / "s.toml").write_text(next(blocks(page, "toml")), encoding="utf-8")
    for text in load_scenario(tmp_path / "s.toml").policies:
        policy_from_text(text)


def test_scenarios_of_the_examples_load() -> None:
    for path in (ROOT / "examples").glob("*.toml"):
        assert load_scenario(path).workload


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs makes them."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if target.startswith(("http://", "https://")):
            continue
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_the_changelog_and_the_readme_name_every_policy_family() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in POLICIES)
    assert all(
        f"`{name}`" in text or f"`--semantics {name}`" in text
        for name in known_semantics()
        if name != "event-driven"
    )


def test_the_changelog_is_short() -> None:
    """A reader wants to know what there is."""
    unreleased = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert unreleased.startswith(hemiola.__version__) and len(unreleased.splitlines()) <= 80


def test_a_citation_names_the_version() -> None:
    assert f"\nversion: {hemiola.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_commits_are_checked_by_the_tools_of_make_static() -> None:
    """And by nothing that has to be fetched."""
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"entry: (\S+)", text)
    assert entries == [f".venv/bin/{tool}" for tool in ("ruff", "ruff", "mypy", "lint-imports")]
    assert re.findall(r"repo: (\S+)", text) == ["local"]


def test_the_makefile_explains_itself() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for target in ("demo", "test", "check", "bench", "docs"):
        assert re.search(rf"^{target}\s+\w", done.stdout, re.MULTILINE)


def test_what_the_readme_says_of_tests_is_what_ci_runs() -> None:
    assert re.search(r"^make test\b", "\n".join(blocks(ROOT / "README.md", "sh")), re.MULTILINE)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "HEMIOLA_REQUIRE_ALL=1" in script
    assert re.search(r"^make test$", script, re.MULTILINE)


HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "tools/docs_hooks.py"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("<script src='https://unpkg.com/a.js'></script>", "https://unpkg.com/a.js"),
        ("<script src=//cdn.org/a.js></script>", "//cdn.org/a.js"),
        ("<link href='http://fonts.org/f.css' rel='stylesheet'>", "http://fonts.org/f.css"),
        ("<link rel='preload' as='font' href='https://fonts.org/f.woff2'>", "https://fonts.org/f.woff2"),
        ("<style>@import 'https://a.org/b.css';</style>", "https://a.org/b.css"),
        ("<p style='background: url(https://a.org/b.png)'>", "https://a.org/b.png"),
        ("<img src='https://a.org/b.png'>", "https://a.org/b.png"),
        ("<pre class='mermaid'>", "https://unpkg.com (the theme loads mermaid from there)"),
        ("<a href='https://a.org'>a</a> <script src='../a.js'></script> <script>f('https://a.org')</script>", ""),
        ("<link rel='canonical' href='https://a.org/here'> <code>src='https://a.org'</code>", ""),
    ],
)  # fmt: skip
def test_pages_that_fetch_are_found(text: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index.html").write_text(text)
    assert HOOKS["fetched"](tmp_path) == ([f"a/index.html: {address}"] if address else [])
    (tmp_path / "font.css").write_text(
        "@font-face { src: url(https://a.org/f.woff2), url(data:x), url(f.woff2) }"
    )
    assert HOOKS["fetched"](tmp_path)[-1] == "font.css: https://a.org/f.woff2"


def test_the_documentation_names_no_file_elsewhere() -> None:
    assert not re.search(r"(https?:)?//", (ROOT / "mkdocs.yml").read_text())


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="formulas need the group docs: make docs")
    page = r'<p><span class="arithmatex">\(a &lt; \frac{1}{2}\)</span></p><div class="arithmatex">\[x\]</div>'
    made = HOOKS["formulas"](page)
    assert made.count("<math") == 2 and "<mfrac>" in made and 'display="block"' in made and "\\" not in made
    with pytest.raises(ValueError, match=r"the formula \\nothing has \\nothing"):
        HOOKS["formulas"](r'<span class="arithmatex">\(\nothing\)</span>')
