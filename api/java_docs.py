"""Javadoc from the docstrings of the description."""

from __future__ import annotations

import html
import re

from java_types import java_name
from stub import Argument, Enum, Handle

# What the docstrings say in Python's words.
_WORDS = {
    "ValueError": "IllegalArgumentException",
    "TypeError": "IllegalArgumentException",
    "NotImplementedError": "UnsupportedOperationException",
    "None": "null",
    "True": "true",
    "False": "false",
    "str": "String",
    "Raises": "Throws",
    "raises": "throws",
    "raise": "throw",
    "timedelta": "Duration",
    "_async": "Async",
}

_ARGUMENTS = {
    "timeout": "how long it may take",
    "op": "how elements are combined",
    "factor": "with PREMUL_SUM, by what this rank's elements are multiplied first",
    "root": "the rank in the middle of it",
    "dst": "the rank to send to",
    "src": "the rank to receive from",
    "tag": "tells messages between two ranks apart",
    "tensor": "the elements",
    "tensors": "the elements, tensor by tensor",
    "input": "this rank's elements; read only",
    "inputs": "this rank's elements; read only",
    "output": "where the result goes",
    "outputs": "where the result goes",
    "reason": "the cause that is quoted to all who notice",
    "key": "not empty",
    "keys": "not empty ones",
    "value": "the bytes",
    "values": "the bytes, in the order of the keys",
    "ranks": "members, by their rank in the world",
    "backend": "a backend's name",
    "names": "one for each, or none",
}


class JavaDocs:
    """Comments for one API, whose names it knows."""

    def __init__(self, api: list[Enum | Handle]):
        handles = [item for item in api if isinstance(item, Handle)]
        methods = [method for handle in handles for method in handle.methods]
        arguments = {argument.name for method in methods for argument in method.arguments}
        self._names = {name for name in arguments | {m.name for m in methods} if "_" in name}

    def text(self, doc: str) -> str:
        """A docstring as the text of a Javadoc comment."""
        parts = re.split(r"`([^`]+)`", doc.strip())
        for i, part in enumerate(parts):
            words = self._in_java(part)
            if i % 2:
                parts[i] = f"{{@code {words}}}"
            else:
                parts[i] = html.escape(words, quote=False).replace("@", "&#64;")
        return "".join(parts).replace("*/", "*&#47;").replace("\n\n", "\n\n<p>")

    def argument(self, argument: Argument) -> str:
        text = _ARGUMENTS.get(argument.name, f"the {argument.name.replace('_', ' ')}")
        default = "; null for the default" if argument.type.stub.endswith("| None") else ""
        return f"@param {java_name(argument.name)} {text}{default}"

    def result(self, doc: str, java: str) -> str:
        """The tag for a result of type `java`, in the words of the docstring where it has some."""
        if java == "WorkFuture":
            return "@return completes when the operation has finished here"
        sentence = re.split(r"[.:;](?:\s|$)|\n\n", doc.strip())[0]
        if re.match(r"(The|A|An|This|That|Every|Each|Whether|How|What|Which)\b", sentence):
            return f"@return {self.text(sentence[0].lower() + sentence[1:])}"
        if said := re.search(r"\b[Rr]eturns (?!once)([^.:;]+)[.:;]", doc):
            return f"@return {self.text(said[1])}"
        if java == "boolean":
            return "@return whether it was so"
        return f"@return {'the new ' + java if java[0].isupper() else 'the outcome'}"

    def comment(self, lines: list[str], indent: str) -> list[str]:
        """A Javadoc comment of paragraphs and tags."""
        text = "\n".join(lines).split("\n")
        if len(text) == 1 and len(text[0]) < 90:
            return [f"{indent}/** {text[0]} */"]
        return [f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in text), f"{indent} */"]

    def _in_java(self, text: str) -> str:
        def word(match: re.Match[str]) -> str:
            found = match[0]
            if found in self._names:
                return java_name(found)
            if re.fullmatch(r"Dist\w*Errors?", found):
                return found.replace("Error", "Exception")
            return _WORDS.get(found) or _WORDS.get(found.removesuffix("s"), found)

        # What is followed by = is a parameter of a URL. Two errors of Python are one of Java.
        twice = "IllegalArgumentException(, | or )IllegalArgumentException"
        return re.sub(twice, "IllegalArgumentException", re.sub(r"\b\w+\b(?!=)", word, text))
