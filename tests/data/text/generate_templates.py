"""Writes chat-template cases and the texts that transformers' own renderer gives for them.

    pip install transformers==5.24.0 jinja2==3.1.6
    python generate_templates.py         # from this folder; template_golden.json is committed

`snippets` are small templates over CONTEXT; an expected null means that the reference reports an error. `chats` are whole
templates over conversations. `strftime` are formats at 1700000000.25 s after the epoch in two time zones.
"""

import copy
import datetime
import json
import os
import pathlib
import time

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent

CONTEXT = {
    "s": "Hello World", "e": "", "n": None, "i": 5, "z": 0, "f": 1.5, "fl": 3.0, "b": True, "nb": False,
    "l": [3, 1, 2], "ls": ["b", "a", "C"], "d": {"b": 1, "a": [1, {"x": "y"}], "items": 7, "get": 3},
    "em": [], "ed": {}, "u": "naïve 日本 'q' \"d\" \\ \n\t\u00a0\u200b\x7f", "h": "<a href='x'>&</a>",
    "mix": [1, 2.0, "x", None, True, {"k": "v'w"}], "big": 12345678901234567890, "neg": -7,
    "multi": "a\nb\r\nc\n", "ws": "  x y  ",
}
MESSAGES = [
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
]

SNIPPETS = r"""
{{ b }}|{{ nb }}|{{ n }}|{{ nope }}|{{ f }}|{{ fl }}|{{ big }}|{{ neg }}
{{ l }}|{{ mix }}|{{ d }}|{{ u }}|{{ [u] }}|{{ em }}|{{ ed }}
{{ (1,) }}|{{ (1,2) }}|{{ () }}|{{ {'a':1,2:'b'} }}
{{ s ~ i ~ f ~ b ~ n ~ l }}
{{ s + "x" }}|{{ l + [4] }}|{{ i + f }}|{{ b + 1 }}
{{ s + i }}
{{ nope + "a" }}
{{ "a" * 3 }}|{{ [1]*2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 2 ** 3 }}|{{ 7 / 2 }}|{{ 6 / 2 }}
{{ 1.0 * 3 }}|{{ 0.1 + 0.2 }}|{{ 1e20 }}|{{ 1e-7 }}|{{ 1/3 }}|{{ 10**20 }}
{{ s is string }}|{{ i is string }}|{{ n is none }}|{{ nope is none }}|{{ nope is defined }}|{{ n is defined }}
{{ s is iterable }}|{{ l is iterable }}|{{ d is iterable }}|{{ n is iterable }}|{{ i is iterable }}|{{ nope is iterable }}
{{ s is sequence }}|{{ l is sequence }}|{{ d is sequence }}|{{ n is sequence }}|{{ i is sequence }}|{{ nope is sequence }}
{{ s is mapping }}|{{ l is mapping }}|{{ d is mapping }}|{{ ed is mapping }}|{{ n is mapping }}
{{ b is number }}|{{ i is number }}|{{ s is number }}|{{ b is integer }}|{{ fl is integer }}|{{ b is boolean }}|{{ i is boolean }}
{{ b is true }}|{{ 1 is true }}|{{ nb is false }}|{{ n is false }}|{{ i is eq 5 }}|{{ i is odd }}|{{ i is in [5] }}
{{ range is callable }}|{{ s is callable }}|{{ nope is callable }}
{{ "a" in s }}|{{ 1 in l }}|{{ "b" in d }}|{{ 1 in d }}|{{ "x" not in s }}|{{ n in [n] }}|{{ "a" in nope }}
{{ s[0] }}|{{ s[-1] }}|{{ s[1:3] }}|{{ s[::-1] }}|{{ l[::-1] }}|{{ l[1:] }}|{{ l[:-1] }}|{{ l[5:] }}|{{ l[::2] }}
{{ l[10] }}|{{ d["zz"] }}|{{ d.zz }}|{{ d.b }}|{{ d["a"][1].x }}
{{ d.zz.yy }}
{{ nope.x }}
{{ d.items() | list }}|{{ d.keys() | list }}|{{ d.values() | list }}|{{ d.get("b") }}|{{ d.get("q") }}|{{ d.get("q", 5) }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}
{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }};{% endfor %}{% for c in s %}{{ c }};{% endfor %}
{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle('x','y') }}{% endfor %}
{% for m in messages if m.role == "user" %}{{ loop.index }}{{ m.content }}{% else %}none{% endfor %}
{% for m in em %}x{% else %}none{% endfor %}{% for m in nope %}x{% else %}E{% endfor %}
{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}
{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.content }}{% endfor %}
{% for m in i %}x{% endfor %}
{% set ns = namespace(a=1, b=[]) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ ns.b }}
{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}{% if b %}{% set x = 2 %}{% endif %}{{ x }}
{% set x %}  body {{ i }} {% endset %}[{{ x }}]{% set a, c = 1, 2 %}{{ a }}{{ c }}
{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(a=4) }}|{{ m(1)|upper }}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}{% filter upper %}abc{% endfilter %}
{{ s|upper }}|{{ s|title }}|{{ s|capitalize }}|{{ ws|trim }}|{{ "xxaxx"|trim("x") }}|{{ s|length }}|{{ s|replace("l","L",1) }}
{{ l|sort }}|{{ l|sort(reverse=true) }}|{{ ls|sort }}|{{ l|first }}|{{ l|last }}|{{ l|min }}|{{ l|max }}|{{ l|sum }}|{{ l|reverse|list }}
{{ l|join(",") }}|{{ mix|join(",") }}|{{ messages|join("-", attribute="role") }}|{{ l|join }}
{{ messages|map(attribute="role")|list }}|{{ ls|map("upper")|list }}|{{ messages|map(attribute="zz", default="d")|list }}
{{ messages|selectattr("role","equalto","user")|list|length }}|{{ messages|rejectattr("role","eq","user")|map(attribute="content")|list }}
{{ l|select("odd")|list }}|{{ l|reject("odd")|list }}|{{ [0,1,"",n]|select|list }}|{{ [1,1,2]|unique|list }}
{{ nope|default("D") }}|{{ n|default("D") }}|{{ e|default("D", true) }}|{{ n|default("D", boolean=true) }}|{{ nope|d("x") }}
{{ "3"|int }}|{{ "x"|int }}|{{ "x"|int(7) }}|{{ 3.9|int }}|{{ "1.5"|float }}|{{ "x"|float }}|{{ 2.567|round(1) }}|{{ -3|abs }}
{{ b|string }}|{{ n|string }}|{{ l|string }}|{{ f|string }}|{{ 1|string + "a" }}
{{ [1,2,3,4,5]|batch(2)|list }}|{{ [1,2,3,4,5]|slice(2)|list }}
{% for g in messages|groupby("role") %}{{ g.grouper }}:{{ g.list|length }};{% endfor %}
{{ "a\nb"|indent }}|{{ "a\nb"|indent(2, true) }}|{{ "a\n\nb"|indent(2) }}|{{ "a\nb"|indent(width=3, first=true) }}
{{ h }}|{{ h|e }}|{{ h|safe }}|{{ h|tojson }}|{{ u|tojson }}|{{ d|tojson }}|{{ mix|tojson }}|{{ n|tojson }}
{{ d|tojson(indent=2) }}{{ mix|tojson(indent=4) }}{{ em|tojson(indent=2) }}{{ ed|tojson(indent=1) }}
{{ d|tojson(sort_keys=true) }}|{{ d|tojson(separators=(",", ":")) }}|{{ u|tojson(ensure_ascii=true) }}|{{ "😀"|tojson(ensure_ascii=true) }}
{{ nope|tojson }}
{{ {1:2, none:3, true:4, 1.5:5}|tojson }}|{{ (1,2)|tojson }}|{{ range(3)|list|tojson }}|{{ 1e16|tojson }}
{{ "%s is %d and %.2f"|format("x", 3, 2.5) }}|{{ "{} {}".format(1, "a") }}|{{ "{a}".format(a=3) }}
{{ s.upper() }}|{{ ws.strip() }}|{{ ws.lstrip() }}|{{ ws.rstrip() }}|{{ s.split() }}|{{ s.split("o", 1) }}|{{ s.startswith("He") }}|{{ s.endswith(("x","d")) }}
{{ s.find("o") }}|{{ s.rfind("o") }}|{{ s.count("l") }}|{{ "x".join(["a","b"]) }}|{{ multi.splitlines() }}|{{ multi.splitlines(true) }}|{{ s.isdigit() }}
{{ s.rsplit("o", 1) }}|{{ " a b  c ".rsplit(none, 1) }}|{{ s.removeprefix("He") }}|{{ s.removesuffix("ld") }}|{{ s.partition(" ") }}|{{ s.rpartition("o") }}
{{ s.zfill(13) }}|{{ "-5".zfill(4) }}|{{ s.ljust(13) }}|{{ s.rjust(13) }}|{{ s.center(14,"*") }}|{{ s.center(15,"*") }}|{{ s.swapcase() }}|{{ s.index("W") }}
{{ s.index("zz") }}
{{ l.index(1) }}|{{ l.count(3) }}|{{ d.copy() }}
{{ l.append(5) }}
{{ range(3)|list }}|{{ range(1,7,2)|list }}|{{ range(3,0,-1)|list }}|{{ dict(a=1) }}
{{ "a" if b else "c" }}|{{ "a" if nb }}|{{ not b }}|{{ b and "x" }}|{{ e or "z" }}|{{ 1 < 2 < 3 }}|{{ l == [3,1,2] }}|{{ 1 == 1.0 }}|{{ "1" == 1 }}
{{ 'it\'s' }}|{{ "tab\there" }}|{{ 'nl\n' }}|{{ "\u00e9" }}|{{ "\x41" }}|{{ '\\n' }}|{{ "a" "b" }}
{{- s -}}   x {#- c -#}  y{% raw %}{{ x }}{% endraw %}
{% if em %}t{% else %}f{% endif %}{% if d %}t{% endif %}{% if 0.0 %}t{% else %}f{% endif %}{% if nope %}t{% else %}f{% endif %}
{% generation %}gen {{ s }}{% endgeneration %}{%- generation -%}  gen {%- endgeneration %} x {{ "{% generation %}" }}
{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}
{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ bos_token }}{{ nope }}
{{ {"a": b, "c": n} }}|{{ [b, n, 1.0, "x"] }}|{{ u|length }}|{{ "ß"|upper }}
{{ True }}{{ None }}{{ False }}|{{ loop is defined }}|{{ 5 is ge 3 }}|{{ "upper" is filter }}
{{ nope() }}
{{ 1 / 0 }}
{{ s|nosuchfilter }}
{% include "x" %}
"""

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Plain tags on their own lines: case 20.
LINES = """{% for m in messages %}
    {% if m.role == "user" %}
U:{{ m.content }}
    {% endif %}
{% endfor %}
"""
TOOLS = """{%- if tools %}
    {{- bos_token + "tools:" }}
    {%- for tool in tools %}
        {{- "\\n" ~ tool | tojson }}
        {%- for name, spec in tool.function.parameters.properties.items() %}
            {{- "\\n- " ~ name ~ ": " ~ spec.type }}
        {%- endfor %}
    {%- endfor %}
    {{- "\\n" }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" %}
        {%- set last = loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role not in ["system", "user", "assistant", "tool"] %}
        {{- raise_exception("unknown role " ~ message.role) }}
    {%- endif %}
    {{- "<" + message.role + ">" }}
    {%- if message.content %}{{- message.content | trim }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- "\\ncall " ~ call.function.name ~ "(" ~ call.function.arguments | tojson ~ ")" }}
        {%- for key, value in call.function.arguments.items() %}{{ " " ~ key ~ "=" ~ value }}{% endfor %}
    {%- endfor %}
    {{- eos_token }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}<nothink>{% endif %}
{% endif %}"""
ALTERNATE = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{
 raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{{ m.content }}{% endfor %}"""

USER = {"role": "user", "content": "Hi <there> & \"you\" é日本"}
TOOL_LIST = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Get the <weather> of 'a' city – \"now\"",
            "parameters": {
                "type": "object",
                "properties": {
                    "z_city": {"type": "string", "enum": ["a", "b"]},
                    "items": {"type": "array", "items": {"type": "string"}},
                    "keys": {"type": "object"},
                },
                "required": ["z_city"],
            },
        },
    }
]


def calls(arguments, **content):
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", **content, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


ARGUMENTS = {"z_city": "Zürich", "days": 2, "f": 1.0, "ok": True, "none": None, "a": [1, {"b": "c"}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}

CHATS = [
    ("chatml", CHATML, [USER], None, {}),
    ("chatml turns", CHATML, [{"role": "system", "content": "S"}, *MESSAGES], None, {}),
    ("lines", LINES, MESSAGES, None, {}),
    ("tools absent", TOOLS, [USER], None, {}),
    ("tools", TOOLS, [USER], TOOL_LIST, {}),
    ("tool call", TOOLS, [USER, calls(ARGUMENTS, content=""), RESULT, USER], TOOL_LIST, {}),
    ("tool call with text", TOOLS, [USER, calls(ARGUMENTS, content=" text "), RESULT], None, {}),
    ("kwargs", TOOLS, [USER], None, {"enable_thinking": False}),
    ("unknown role", TOOLS, [{"role": "critic", "content": "x"}], None, {}),
    ("alternate", ALTERNATE, MESSAGES, None, {}),
    ("not alternating", ALTERNATE, [USER, USER], None, {}),
]
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}


def render(template, messages, tools, kwargs, add_generation_prompt):
    try:
        texts, _ = render_jinja_template(
            [copy.deepcopy(messages)],
            tools=tools,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **{**ROLES, **kwargs},
        )
        return {"text": texts[0]}
    except Exception as error:
        return {"text": None, "error": str(error)}


def strftime_cases():
    formats = [
        "%d %b %Y", "%d %b %Y %H|%j|%%", "%-d %B %y %A %a %p %I %U %w %G %V", "[%z][%Z]", "%e %D %F %R %T %h",
        "%f", "", "%", "%Q", "a\nb", "%%d", "日本 %Y", "%c|%x|%X", "%H:%M:%S.%f",
    ]
    out = []
    for zone in ["UTC", "America/New_York"]:
        os.environ["TZ"] = zone
        time.tzset()
        now = datetime.datetime.fromtimestamp(1700000000.25)
        out += [{"zone": zone, "format": f, "text": now.strftime(f)} for f in formats]
    return out


def main():
    snippets = SNIPPETS.strip().split("\n")
    golden = {
        "context": CONTEXT,
        "messages": MESSAGES,
        "special_tokens": ROLES,
        "snippets": [{"template": t, **render(t, MESSAGES, None, CONTEXT, True)} for t in snippets],
        "chats": [
            {
                "name": name, "template": template, "messages": messages, "tools": tools, "kwargs": kwargs,
                "add_generation_prompt": prompt, **render(template, messages, tools, kwargs, prompt),
            }
            for name, template, messages, tools, kwargs in CHATS
            for prompt in [True, False]
        ],
        "strftime": strftime_cases(),
    }
    (HERE / "template_golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
