"""python united_sources.py FOLDER SOURCE..: joins C++ sources into unity sources.

A source of a hundred lines spends most of its compile time in headers and templates that other
sources of its folder include too. This script writes unity sources to FOLDER, each of which
includes up to twelve sources. It prints a CMake list of what to compile: the unity sources and the
sources that stay alone.

Joined sources must mean the same as separate ones. Sources are therefore joined only if no private
name of one appears anywhere in another, whether as a private name, a name of a header or a local
variable. A private name stands in an unnamed namespace, or is a constant, an alias or a static
function. A source stays alone if it defines macros, is compiled with a macro of its own (the place
of the source tree, whether there is CUDA), or includes itself once for every instruction set.
"""

import re
import sys
from pathlib import Path

BATCH = 12
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
UNNAMED = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.M | re.S)
# Definitions at the left margin: types, functions and variables, constants, aliases. The name is
# the last word before the character that opens its definition.
TYPE = re.compile(r"^(?:struct|class|union|enum class|enum|using|namespace) (\w+)(?= |;|$)", re.M)
DEFINED = re.compile(r"^(?:\w[\w:<>,&*\[\] ()]*?[ &*>])(\w+)(?=\(|\[|\{|;| = | \{)", re.M)
INTERNAL = re.compile(r"^(?:static|constexpr|const|using|namespace \w+ =) .*", re.M)
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?= = |\{|\[)")
WORD = re.compile(r"(?<!\.)(?<!->)\b[A-Za-z_]\w*")  # not what is asked of an object
ALONE = re.compile(
    r"^ *# *(?:define|undef)\b|foreach_target\.h|FDMA_SOURCE_DIR|FDMA_TEST_DATA|FDMA_HAS_", re.M
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
    """The unity source of the batch; the file is written only if its text changes."""
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
