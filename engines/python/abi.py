"""Turns the declarations of lib/include/fewhead.h into a Python module of ctypes declarations.

    python3 abi.py lib/include/fewhead.h fewhead/_abi.py

The text between the header's cdef marks is read; nothing is typed twice. The module holds the header's version and checksum,
every constant, every struct with its fields in order, and the type of every function. fewhead/_library.py compares checksum and
sizes with those of the library before it calls anything.
"""

import re
import sys

BEGIN, END = "/* cdef:begin */\n", "/* cdef:end */\n"

SCALARS = {
    "char": "c_char",
    "float": "c_float",
    "double": "c_double",
    "size_t": "c_size_t",
    "int": "c_int",
    "unsigned": "c_uint",
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class HeaderError(Exception):
    """A declaration that this generator cannot read; the text names the declaration."""


def cksum(text):
    """The POSIX cksum of bytes: what the Makefile compiles into the library.

    CRC-32 with polynomial 0x04C11DB7, high bit first, over the bytes and then over their count, low byte first; complemented.
    """
    crc, length = 0, len(text)
    count = length.to_bytes((length.bit_length() + 7) // 8, "little")
    for byte in text + count:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)) & 0xFFFFFFFF
    return crc ^ 0xFFFFFFFF


def cdef(header):
    """The text between the cdef marks of a header's text."""
    begin, end = header.find("\n" + BEGIN), header.find("\n" + END)
    if begin < 0 or end < begin:
        raise HeaderError(f"no cdef marks: wanted the lines {BEGIN.strip()} and {END.strip()}")
    return header[begin + 1 + len(BEGIN) : end + 1]


def statements(text):
    """The declarations of a text without comments: what stands before each ; outside of braces, in one line."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == ";" and depth == 0:
            yield re.sub(r"\s+", " ", text[start:at]).strip()
            start = at + 1
    if text[start:].strip():
        raise HeaderError(f"no ; behind: {text[start:].strip()[:80]}")


class Header:
    """What a header declares: constants {name: number}, enums {name: {constant: number}}, structs {name: [(field, type text)]},
    functions {name: (result text, [argument text])}. A type text is Python source that names things of ctypes and of the module.
    """

    def __init__(self, text):
        self.checksum = cksum(cdef(text).encode())
        self.constants, self.enums, self.structs, self.functions = {}, {}, {}, {}
        self.types, self.opaque = dict(SCALARS), set()
        for statement in statements(cdef(text)):
            self._read(statement)

    def _read(self, s):
        if m := re.fullmatch(r"(?:typedef )?enum (\w+ )?\{(.*)\} ?(\w+)?", s):
            self._read_enum(m[3] or (m[1] or "").strip(), m[2])
        elif m := re.fullmatch(r"typedef struct (\w+) (\w+)", s):
            self.opaque.add(m[2])
        elif m := re.fullmatch(r"(?:typedef )?struct (\w+) \{(.*)\} ?(\w+)?", s):
            self._read_struct(m[3] or m[1], m[2])
        elif m := re.fullmatch(r"typedef (\w+) (\w+)", s):
            self.types[m[2]] = self._type(m[1], "", s)
        elif m := re.fullmatch(r"((?:const )?\w+) ?(\**) ?(\w+)\((.*)\)", s):
            arguments = [] if m[4].strip() in ("", "void") else m[4].split(",")
            self.functions[m[3]] = (self._result(m[1], m[2], s), [self._argument(a.strip()) for a in arguments])
        else:
            raise HeaderError(f"cannot read the declaration: {s}")

    def _number(self, text):
        """The value of a constant expression of numbers and of constants that stand before it."""
        text = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: str(self.constants[m[0]]) if m[0] in self.constants else m[0], text)
        if not re.fullmatch(r"[-+*/()<>| 0-9xXa-fA-F]+", text):
            raise HeaderError(f"cannot read the number: {text}")
        return eval(text.replace("/", "//"), {"__builtins__": {}})  # digits and operators alone, by the test above

    def _read_enum(self, name, body):
        members, following = {}, 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            constant, _, value = (part.strip() for part in item.partition("="))
            members[constant] = self.constants[constant] = self._number(value) if value else following
            following = members[constant] + 1
        if name:
            self.enums[name] = members
            self.types[name] = "c_int"

    def _read_struct(self, name, body):
        fields = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            m = re.fullmatch(r"((?:const )?(?:struct )?\w+) ?(.*)", line)
            for declarator in m[2].split(","):
                d = re.fullmatch(r"(\**) ?(?:const )?(\w+) ?(?:\[(.*)\])?", declarator.strip())
                if not d:
                    raise HeaderError(f"struct {name}: cannot read the field: {line}")
                text = self._type(m[1], d[1], line)
                fields.append((d[2], f"{text} * {self._number(d[3])}" if d[3] else text))
        self.structs[name] = fields
        self.types[name] = name
        self.opaque.discard(name)

    def _type(self, base, stars, where):
        if stars:
            return "c_void_p"
        base = re.sub(r"\b(const|struct)\b", "", base).strip()
        if base not in self.types:
            raise HeaderError(f"unknown type {base} in: {where}")
        return self.types[base]

    def _result(self, base, stars, where):
        if base == "void" and not stars:
            return "None"
        return "c_char_p" if base == "const char" and stars == "*" else self._type(base, stars, where)

    def _argument(self, text):
        m = re.fullmatch(r"((?:const )?(?:struct )?\w+) ?(\**) ?(?:const )?(\w+)?", text)
        if not m:
            raise HeaderError(f"cannot read the argument: {text}")
        return "c_char_p" if m[1] == "const char" and m[2] == "*" else self._type(m[1], m[2], text)

    def module(self):
        """The source of the Python module."""
        lines = [
            '"""Declarations of fewhead.h, generated by abi.py: do not edit."""',
            "from ctypes import *  # noqa: F403",
            "",
            f"CHECKSUM = {self.checksum}",
            "",
        ]
        lines += [f"{name} = {value}" for name, value in self.constants.items()] + [""]
        for name, fields in self.structs.items():
            lines += ["", f"class {name}(Structure):", "    _fields_ = ["]
            lines += [f'        ("{field}", {text}),' for field, text in fields] + ["    ]", ""]
        lines += [
            "",
            "STRUCTS = {" + ", ".join(f'"{name}": {name}' for name in self.structs) + "}",
            f"ENUMS = {self.enums!r}",
            "FUNCTIONS = {",
        ]
        lines += [f'    "{name}": ({result}, [{", ".join(arguments)}]),' for name, (result, arguments) in self.functions.items()]
        return "\n".join(lines + ["}", ""])


def generate(header, target):
    """Write the module for the header at one path to another."""
    with open(header, encoding="utf-8") as f:
        module = Header(f.read()).module()
    with open(target, "w", encoding="utf-8") as f:
        f.write(module)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: abi.py HEADER MODULE")
    try:
        generate(sys.argv[1], sys.argv[2])
    except (HeaderError, OSError) as error:
        sys.exit(f"abi.py: {error}")
