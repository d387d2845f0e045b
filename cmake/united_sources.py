"""python united_sources.py FOLDER SOURCE..: C++ sources compiled together, several at once.

Most of the time of compiling a source of a hundred lines goes into headers and templates, which
its neighbours go through again. So up to twelve sources are included by one made-up source in
FOLDER. Printed, as a CMake list: what to compile, which are the made-up sources and those that
stay alone.

What a source defines for itself must mean the same beside others: sources go together only where
no private name of one (in an unnamed namespace, or a constant, alias or static function) stands
anywhere in another, be it as a name of its own, of a header or of a local variable. Sources that
define macros, are compiled with one of their own (where the source tree is), or include themselves
once for every instruction set, stay alone.
"""

import re
import sys
from pathlib import Path

BATCH = 12
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
UNNAMED = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.M | re.S)
# What stands at the left margin: types, functions and variables, constants, aliases. The name is
# the last word before what tells that it is defined here.
TYPE = re.compile(r"^(?:struct|class|union|enum class|enum|using|namespace) (\w+)(?= |;|$)", re.M)
DEFINED = re.compile(r"^(?:\w[\w:<>,&*\[\] ()]*?[ &*>])(\w+)(?=\(|\[|\{|;| = | \{)", re.M)
INTERNAL = re.compile(r"^(?:static|constexpr|const|using|namespace \w+ =) .*", re.M)
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?= = |\{|\[)")
WORD = re.compile(r"(?<!\.)(?<!->)\b[A-Za-z_]\w*")  # not what is asked of an object
ALONE = re.compile(
    r"^ *# *(?:define|undef)\b|foreach_target\.h|FDMA_SOURCE_DIR|FDMA_TEST_DATA", re.M
)


def private_names(text: str) -> set[str]:
    """The names that a source defines for itself."""
    unnamed = COMMENT.sub("", "\n".join(UNNAMED.findall(text)))
    internal = COMMENT.sub("", "\n".join(INTERNAL.findall(text)))
    names = set(TYPE.findall(unnamed + internal)) | set(DEFINED.findall(unnamed))
    names |= set(DEFINED.findall(internal)) | set(CONSTANT.findall(unnamed + internal))
    return names - {"const"}


def batches(sources: list[Path], size: int = BATCH) -> list[list[Path]]:
    """The sources in their order, those together that go together, at most `size`."""
    open_batches: list[tuple[set[str], set[str], list[Path]]] = []
    alone: list[list[Path]] = []
    for source in sources:
        text = source.read_text()
        if ALONE.search(text):
            alone.append([source])
            continue
        names, words = private_names(text), set(WORD.findall(COMMENT.sub("", text)))
        for their_names, their_words, batch in open_batches:
            if len(batch) < size and not names & their_words and not their_names & words:
                their_names |= names
                their_words |= words
                batch.append(source)
                break
        else:
            open_batches.append((names, words, [source]))
    return [batch for _, _, batch in open_batches] + alone


def united(folder: Path, batch: list[Path]) -> Path:
    """The source that includes those of the batch; written where it changes."""
    if len(batch) == 1:
        return batch[0]
    stem = re.sub(r"\W", "_", batch[0].stem)
    source = folder / f"{stem}_and_{len(batch) - 1}.cpp"
    text = "".join(f'#include "{each}"  // NOLINT(bugprone-suspicious-include)\n' for each in batch)
    if not source.exists() or source.read_text() != text:
        folder.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
    return source


def main() -> None:
    folder, sources = Path(sys.argv[1]), [Path(name).resolve() for name in sys.argv[2:]]
    print(";".join(str(united(folder, batch)) for batch in batches(sources)), end="")


if __name__ == "__main__":
    main()
