#!/usr/bin/env python3
"""Renders small templates with Jinja2, set up by Hugging Face transformers, one feature each.

Writes tests/text/jinja/features.json: [{"feature", "template", "expected" | "error"}], and
"context" where it is not CONTEXT. Needs transformers and jinja2:

    python tests/golden/make_template_goldens.py
"""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

CONTEXT = {
    "n": 7,
    "x": 2.5,
    "s": "Grüße an Straße",
    "words": ["pear", "Apple", "fig", "apple"],
    "nums": [3, 1, 2, 1],
    "d": {"b": 1, "a": [1, 2.5, None, True], "items": "own", "q": "it's \"so\""},
    "users": [
        {"name": "Ann", "age": 31, "address": {"city": "Oslo"}},
        {"name": "bob", "age": 27, "address": {"city": "Rome"}},
        {"name": "Cid", "age": 31, "address": {"city": "oslo"}},
    ],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "nothing": None,
    "text": "line one\n  line two\n\nline four\n",
    "html": "<a href=\"x\">T&C's</a>",
    "big": 18446744073709551615,
}

FEATURES = {
    "whitespace": [
        "a\n{% if true %}\nb\n{% endif %}\nc",
        "a\n   {% if true %}\n  b\n   {% endif %}\nc",
        "a {%- if true -%} b {%- endif -%} c",
        "a\n  {%+ if true %}\nb{% endif +%}\nc",
        "a {{- 1 -}} b {{ 2 }} c",
        "  {{ 1 }}  \n  {{- 2 }}\n",
        "a\n  {# comment #}\nb {#- c -#} d",
        "a\n\n", "a\n", "\n", "", "{% set a = 1 %}\n\nb",
        "x {% raw %}{{ no }}{% if %}{% endraw %} y",
        "x\n  {%- raw -%}\n  {{ no }}\n {%- endraw -%}\n y",
        "x\r\ny\rz\r\n",
        "{% if true %}\n  {% if true %}\n    x\n  {% endif %}\n{% endif %}\n",
        "a{% if true %} {% endif %}b\n {% set q = 1 %}\n  c",
        "{{ '{{' }}{{ '%}' }}{{ {'a': {'b': 1}} }}",
        "{%- for i in [1] %}\n\t {{- i }}\n\t{%- endfor %}\nend",
    ],
    "literals": [
        "{{ 1 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1.5 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 2e22 }}",
        "{{ 'a\\n\\t\\'b\\x41\\u00e9\\U0001F600\\101\\d' }}", "{{ \"it's\" 'joined' }}",
        "{{ true }} {{ True }} {{ none }} {{ None }} {{ false }}",
        "{{ [1, 'a', 2.0, none, [], {}] }} {{ (1,) }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}",
        "{{ {'a': 1, 2: 'b', none: [1], 'a': 3} }}",
        "{{ [\"it's\", 'say \"x\"', 'both \\' \"', 'a\\\\b\\n\\x00\\u200b é'] }}",
        "{{ 1e16 }} {{ 123456789012345.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1e15 }} {{ -0.0 }} {{ 1/3 }} {{ 100.0 }}",
    ],
    "arithmetic": [
        "{{ 7 + 2 }} {{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}",
        "{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 2.0 }}",
        "{{ 'ab' * 3 }} {{ [1] * 2 }} {{ 2 * 'x' }} {{ 'x' * -1 }} {{ true + 1 }} {{ [1] + [2] }} {{ (1,) + (2,) }}",
        "{{ 1 ~ 'a' ~ none ~ 2.0 }} {{ 2 * 3 ~ 4 }} {{ 1 ~ 2 ** 2 }}", "{{ 1 ~ 2 + 3 }}", "{{ -n }} {{ +n }} {{ - x }} {{ not n }} {{ not not '' }}",
        "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ [1] + (2,) }}", "{{ none + 1 }}",
        "{{ 'a' - 'b' }}", "{{ {} * 2 }}", "{{ -'a' }}", "{{ big }} {{ big is integer }} {{ big == 18446744073709551615.0 }} {{ [big] | tojson }}",
    ],
    "comparison": [
        "{{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ [1] == [1.0] }} {{ [1] == (1,) }} {{ none == false }} {{ {'a': 1} == {'a': 1.0} }}",
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 2 >= 2 }} {{ 'é' > 'z' }}",
        "{{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 1 in nums }} {{ 'b' in d }} {{ 'z' in d }} {{ 3 in (1, 2) }} {{ '' in 'a' }} {{ 1.0 in [1] }}",
        "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ 1 in 'abc' }}", "{{ 1 in 5 }}", "{{ 'a' in none }}", "{{ {} < {} }}",
        "{{ 0 or 'x' }} {{ 1 and 'y' }} {{ '' or [] or 0 }} {{ 1 and 0 and 2 }}", "{{ not 1 == 2 }} {{ 1 == 1 and not 2 == 3 or false }}",
        "{{ 'a' if n > 5 else 'b' }} {{ 'a' if n > 9 }}| {{ 'a' if false else 'b' if false else 'c' }}",
    ],
    "undefined": [
        "[{{ missing }}] {{ missing is defined }} {{ missing == nope }} {{ missing == none }} {{ not missing }} {{ [missing] }} {{ missing ~ 'x' }}",
        "{{ d.nope is defined }} {{ d['nope'] is undefined }} {{ users[9] is defined }} {% for i in missing %}x{% else %}none{% endfor %}",
        "{{ missing.attribute }}", "{{ missing['x'] }}", "{{ missing + 1 }}", "{{ d.nope.deeper }}", "{{ users[9].name }}", "{{ missing() }}",
        "{{ d.nope() }}", "{{ 'a' + missing }}", "{{ missing < 1 }}", "{{ nothing.x }}|", "{{ nothing.x.y }}", "{{ s.nope.x }}", "{{ nums.nope.x }}",
        "{{ missing | length }} {{ missing | upper }}| {{ missing | default('d') }} {{ missing | list }} {{ missing is sequence }} {{ missing is iterable }} {{ missing is string }}",
        "{{ missing | int }}", "{{ missing | tojson }}", "{{ 'x' in missing }} {{ missing in ['x'] }}", "{{ missing[1:] }}",
        "{{ ('a' if false).x }}", "{{ n.x }}| {{ n[0] }}|", "{{ [1,2][5].y }}", "{{ d[1].z }}",
    ],
    "subscripts": [
        "{{ nums[0] }} {{ nums[-1] }} {{ nums[1:] }} {{ nums[:-1] }} {{ nums[::2] }} {{ nums[::-1] }} {{ nums[5:] }} {{ nums[-2:] }} {{ nums[3:0:-1] }}",
        "{{ s[0] }} {{ s[2] }} {{ s[-1] }} {{ s[2:5] }} {{ s[::-1] }} {{ s[::3] }} {{ s[-3:] }} {{ s[:2] }} {{ s[100:] }}| {{ s[5:2] }}|",
        "{{ d.b }} {{ d['b'] }} {{ d['items'] }} {{ d.a[1] }} {{ d.a.1 }} {{ (1, 2, 3)[1] }} {{ 'abc'[1] }} {{ range(5)[1:3] | list }}",
        "{{ users[0].address.city }} {{ users[0]['address']['city'] }} {{ users.0.name }}", "{{ nums[::0] }}", "{{ nums['a'] }}|", "{{ nums[1:'a'] }}",
        "{{ d.items is defined }} {{ d.get('b') }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.keys() | list }} {{ d.values() | list | length }}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{{ d.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items() }}", "{{ {1: 'one', 'k': 2}[1] }}", "{{ {(1, 2): 'tuple'}[(1, 2)] }}", "{{ {[1]: 2} }}",
    ],
    "sandbox": [
        "{{ nums.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('b') }}", "{{ nums.sort() }}", "{{ nums.append }}|", "{{ d.clear is defined }}",
        "{{ ''.__class__ }}|", "{{ ''.__class__.__mro__ }}", "{{ d.__init__() }}", "{{ d.setdefault('a', 1) }}", "{{ nums.reverse() }}",
    ],
    "for": [
        "{% for x in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
        "{% for x in [] %}{{ x }}{% else %}empty{% endfor %} {% for c in 'né' %}[{{ c }}]{% endfor %} {% for k in d %}{{ k }} {% endfor %}",
        "{% for x in nums if x != 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}e{% endfor %}",
        "{% for x in nums %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}{% for x in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}!",
        "{% for u in users %}{% if loop.changed(u.age) %}[{{ u.age }}]{% endif %}{{ u.name }} {% endfor %}",
        "{% for n in tree recursive %}({{ n.v }}@{{ loop.depth }}{{ loop(n.c) }}){% endfor %}",
        "{% set v = 'outer' %}{% for i in [1, 2] %}{{ v }}{% set v = 'inner' ~ i %}{{ v }} {% endfor %}{{ v }}",
        "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for i in range(10, 0, -3) %}{{ i }} {% endfor %}",
        "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}",
        "{% for i in [1] %}{{ loop.nope is defined }}{{ loop.nextitem is defined }}{{ loop.previtem is defined }}{% endfor %}", "{{ range(200000) }}", "{% for x in nums %}{{ loop(x) }}{% endfor %}",
        "{% for x in nums recursive %}{% if x > 2 %}{{ loop([1, 2]) }}{% endif %}{{ x }}{% endfor %}", "{{ loop is defined }}",
    ],
    "set": [
        "{% set a = 1 %}{% set b, c = 2, 3 %}{{ a }}{{ b }}{{ c }}{% set t = 1, 2 %}{{ t }}", "{% set t %}x{{ 1 }}y{% endset %}[{{ t }}]{% set u | upper | trim %} abc {% endset %}[{{ u }}]",
        "{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
        "{% set ns = namespace({'k': 1}) %}{% set ns.k = [ns.k] %}{{ ns.k }}", "{% if true %}{% set inside = 5 %}{% endif %}{{ inside }}", "{% set d.x = 1 %}", "{% set ns = namespace() %}{% set ns.items = 3 %}{{ ns.items }}",
        "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a, b = [1] %}", "{% set _ = namespace() %}x",
        "{% set ns = namespace(l=[]) %}{% for i in nums %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}", "{{ namespace(a=1).a }} {{ dict(a=1, b=2) }} {{ dict([(1, 2)]) }} {{ dict({'q': 1}, r=2) }}",
    ],
    "macros": [
        "{% macro f(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=5, a=4) }}{{ f('q', 'r', 's') }}", "{% macro f(a) %}[{{ a }}{{ a is defined }}]{% endmacro %}{{ f() }}{{ f(none) }}",
        "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}", "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in{{ n }}{% endcall %}",
        "{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(nums) %}({{ i }}){% endcall %}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=1) }}",
        "{% macro fact(k) %}{{ 1 if k <= 1 else k * fact(k - 1) | int }}{% endmacro %}{{ fact(5) }}", "{{ f is defined }}{% macro f() %}x{% endmacro %}{{ f() | upper }} {{ f.name }}", "{% set v = 1 %}{% macro f() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ f() }}",
        "{% macro f(x, y=x) %}{{ y }}{% endmacro %}{{ f(3) }}", "{% macro f() %}{% set q = 1 %}{{ q }}{% endmacro %}{{ f() }}{{ q is defined }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*[1]) }}{{ f(**{'a': 2}) }}",
        "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{{ n() }}", "{{ 'x'() }}",
    ],
    "blocks": [
        "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}banana{% endfilter %}", "{% generation %}said{% endgeneration %}!", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% if n == 1 %}one{% elif n == 7 %}seven{% else %}other{% endif %}", "{% if missing %}a{% elif nothing %}b{% elif '' %}c{% else %}d{% endif %}", "{{ raise_exception('No way: ' + s) }}", "{% print(1, 'a') %}",
    ],
    "tests": [
        "{{ n is defined }} {{ n is not defined }} {{ nothing is none }} {{ s is string }} {{ d is mapping }} {{ nums is sequence }} {{ s is sequence }} {{ d is sequence }} {{ n is iterable }} {{ s is iterable }}",
        "{{ n is number }} {{ x is float }} {{ n is integer }} {{ true is integer }} {{ true is number }} {{ true is boolean }} {{ 1 is true }} {{ true is true }} {{ false is false }} {{ x is integer }}",
        "{{ n is odd }} {{ n is even }} {{ n is divisibleby(7) }} {{ n is divisibleby 2 }} {{ 'a' is in 'abc' }} {{ 3 is in nums }} {{ n is eq 7 }} {{ n is ne(7) }} {{ n is gt 3 }} {{ n is lessthan 3 }} {{ n is ge 7 }}",
        "{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'aB' is lower }} {{ '1' is lower }} {{ none is sameas none }} {{ 1 is sameas true }} {{ raise_exception is callable }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}",
        "{{ d.items() is sequence }} {{ d.items() is iterable }} {{ (nums | map('string')) is sequence }} {{ range(2) is sequence }} {{ (1,) is sequence }} {{ nothing is iterable }} {{ nothing is mapping }}", "{{ 'a' is odd }}", "{{ n is nope }}", "{% if false %}{{ n is nope }}{% endif %}ok",
    ],
    "text filters": [
        "{{ s | upper }} {{ s | lower }} {{ 'hELLO wORLD' | title }} {{ 'hELLO' | capitalize }} {{ \"it's (a) x-y\" | title }} {{ '  a b ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 5 | trim }}", "{{ 'aaaa' | replace('a', 'b') }} {{ 'aaaa' | replace('a', 'b', 2) }} {{ 'abc' | replace('', '-') }} {{ 'naïve' | replace('ï', 'i') }} {{ 'ab' | replace('', '-', 2) }}",
        "{{ text | indent }}|{{ text | indent(2, true) }}|{{ text | indent('> ', blank=true) }}|{{ 'a' | indent(2, first=true) }}", "{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '..', 0) }}",
        "[{{ 'ab' | center(7) }}] {{ 'a b c' | wordcount }} {{ 'a b/ü?' | urlencode }} {{ 'abc' | reverse }} {{ 'häß' | reverse }} {{ 'abc' | first }} {{ 'abc' | last }} {{ 'abc' | length }} {{ 'häß' | length }} {{ 'abc' | list }}",
        "{{ '%s is %d' | format('x', 3) }} {{ '%(a)s' | format(a=1) }} {{ 5 | string + 'a' }} {{ none | string }} {{ [1] | string }}", "{{ html | e }} {{ html | escape | e }} {{ html | safe | e }} {{ html | safe }} {{ (html | safe) + '<b>' }} {{ '<i>' + ('x' | safe) }} {{ ('<' | safe) ~ '<' }} {{ ['<' | safe] }} {{ ('<a>' | safe).upper() + '<' }}",
        "{{ 'ǆ ß ŉ' | upper }} {{ 'İ ΑΣ ΣΑΣ' | lower }} {{ 'ǆabc ßx' | capitalize }} {{ 'ﬁx' | title }}",
    ],
    "json": [
        "{{ d | tojson }} {{ users | tojson }}", "{{ d | tojson(indent=2) }}", "{{ {'b': 1, 'a': {'z': [], 'y': {}}} | tojson(indent=1, sort_keys=true) }}", "{{ [1, 2.0, 1e20, 'é\\n\\u0001\"\\\\/', none, true, '\\u007f'] | tojson }} {{ 'é😀' | tojson(ensure_ascii=true) }} {{ '<&>' | tojson }}",
        "{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 2) | tojson }}", "{{ range(2) | tojson }}", "{{ (nums | map('string')) | tojson }}", "{{ d.items() | tojson }}", "{{ {'a': 1} | tojson(indent='--') }}", "{{ [1] | tojson(indent=4, separators=(', ', ' : ')) }}", "{{ {(1, 2): 3} | tojson }}",
    ],
    "sequence filters": [
        "{{ nums | sort }} {{ nums | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ users | sort(attribute='age') | map(attribute='name') | list }} {{ users | sort(attribute='age,name', reverse=true) | map(attribute='name') | join }}",
        "{{ nums | min }} {{ nums | max }} {{ nums | sum }} {{ users | sum(attribute='age') }} {{ nums | first }} {{ nums | last }} {{ nums | length }} {{ nums | count }} {{ words | min }} {{ [] | max }}| {{ users | max(attribute='age') | tojson }}",
        "{{ nums | join }} {{ nums | join(', ') }} {{ users | join('/', attribute='name') }} {{ words | unique | list }} {{ nums | unique | list }} {{ words | unique(case_sensitive=true) | list }} {{ d | join('-') }}",
        "{{ words | map('upper') | list }} {{ users | map(attribute='address.city') | list }} {{ users | map(attribute='x', default='?') | list }} {{ nums | map('string') | join('+') }} {{ ['a b'] | map('replace', ' ', '_') | list }}",
        "{{ nums | select('odd') | list }} {{ nums | reject('odd') | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ [0, 1] | reject | list }} {{ nums | select('gt', 1) | list }} {{ users | selectattr('age', 'equalto', 31) | map(attribute='name') | list }} {{ users | rejectattr('age', 'lt', 30) | list | length }} {{ users | selectattr('nope') | list }} {{ users | selectattr('nope', 'undefined') | list | length }}",
        "{{ nums | batch(3) | list }} {{ nums | batch(3, 0) | list }} {{ nums | slice(3) | list }} {{ nums | slice(3, 'x') | list }} {{ nums | reverse | list }} {{ [1, [2]] | list }}", "{% for g in users | groupby('age') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join(',') }} {% endfor %}{% for c, l in users | groupby('address.city') %}{{ c }}={{ l | length }} {% endfor %}",
        "{{ d | dictsort }} {{ {'b': 2, 'A': 3, 'c': 1} | dictsort }} {{ {'b': 2, 'A': 3} | dictsort(true) }} {{ {'b': 2, 'a': 3} | dictsort(false, 'value') }} {{ {'b': 2, 'a': 3} | dictsort(reverse=true) }} {{ d | items | first }} {{ d | length }} {{ d | list }} {{ d | first }}",
        "{% set g = nums | map('string') %}{{ g | list }}{{ g | list }}", "{{ nums | map('nope') | list }}", "{{ (nums | map('string')) | length }}", "{{ [1, 'a'] | sort }}", "{{ 5 | list }}", "{{ none | length }}", "{{ 5 | join }}", "{{ [1, none] | sum }}", "{{ 5 | items | list }}", "{{ nums | nope }}", "{% if false %}{{ nums | nope }}{% endif %}ok", "{{ d | attr('b') }}| {{ d | attr('keys') is callable }}",
    ],
    "number filters": [
        "{{ '42' | int }} {{ '42.9' | int }} {{ 'x' | int }} {{ 'x' | int(-1) }} {{ '0x1f' | int(base=16) }} {{ '1f' | int(0, 16) }} {{ 2.9 | int }} {{ -2.9 | int }} {{ true | int }} {{ ' 5 ' | int }} {{ none | int }} {{ '1_0' | int }}", "{{ '2.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ '1e3' | float }} {{ 'inf' | float }} {{ none | float }}",
        "{{ -5 | abs }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1, 'floor') }} {{ 42.51 | round(1, 'ceil') }} {{ 1234 | round(-2) }} {{ 5 | round }} {{ 42.55 | round | int }}", "{{ missing | default }}| {{ missing | d(1) }} {{ '' | default('e') }}| {{ '' | default('e', true) }} {{ none | default('e') }} {{ 0 | default(5, boolean=true) }}", "{{ 'a' | abs }}", "{{ 'a' | round }}",
    ],
    "methods": [
        "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ ' a b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ ' a b c '.rsplit(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a--b'.split('--')[-1] }}", "{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xyaxy'.strip('xy') }} {{ '\\u3000é\\u00a0'.strip() }}|{{ '\\n x\\n'.lstrip('\\n') }}|",
        "{{ 'Hello'.startswith('He') }} {{ 'Hello'.endswith(('x', 'lo')) }} {{ 'Hello'.startswith('l', 2) }} {{ 'Hello'.upper() }} {{ 'Hello'.lower() }} {{ 'a b'.title() }} {{ \"they're x2y\".title() }} {{ 'hELLO x'.capitalize() }} {{ 'aB'.swapcase() }}", "{{ 'banana'.replace('a', 'o') }} {{ 'banana'.replace('a', 'o', 1) }} {{ 'banana'.find('n') }} {{ 'banana'.rfind('n') }} {{ 'banana'.find('x') }} {{ 'banana'.count('an') }} {{ 'häßlich'.find('l') }} {{ 'banana'.index('n', 3) }} {{ 'aaa'.count('') }}",
        "{{ '-'.join(['a', 'b']) }} {{ ', '.join(d.keys()) }} {{ 'x'.join([]) }}| {{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{a.b} {l[1]} {k[z]}'.format(a={'b': 1}, l=[1, 2], k={'z': 3}) }} {{ '{{}} {!r:>5}'.format('x') }} {{ '{:05.1f}|{:>4}|{:<4}|{:^5}|{:,}|{:x}|{:+d}|{:%}|{:*^7}'.format(3.14159, 'ab', 'cd', 'e', 1234567, 255, 5, 0.5, 'mid') }}",
        "{{ 'abc'.isdigit() }} {{ '12'.isdigit() }} {{ 'ab1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }} {{ ''.isalpha() }} {{ 'é'.isalpha() }} {{ 'é'.isascii() }}", "{{ 'a\\nb\\r\\nc\\x0b'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'kv'.partition('=') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}",
        "{{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '.') }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ nums.index(2) }} {{ nums.count(1) }} {{ (1, 2).index(2) }} {{ d.copy() == d }} {{ nums.copy() }}", "{{ 'a'.nope() }}", "{{ 'a'.split('') }}", "{{ 'a'.index('z') }}", "{{ '-'.join([1]) }}", "{{ nums.index(99) }}", "{{ 'a'.replace(1, 2) }}", "{{ '{} {}'.format(1) }}", "{{ '{x}'.format(y=1) }}", "{{ 'abc'.startswith(1) }}", "{{ '{0.__class__}'.format('x') }}|",
    ],
    "percent": [
        "{{ '%s %s' % ('a', 1) }} {{ '%d%%' % 5 }} {{ '%5.2f|%-5s|%05d|%+d|%x|%X|%o' % (3.14159, 'ab', 42, 7, 255, 255, 8) }} {{ '%s' % [1, 2] }} {{ '%r' % 'x' }} {{ '%(a)s-%(b)d' % {'a': 'x', 'b': 2} }} {{ '%.3s' % 'abcdef' }} {{ '%e %g' % (12345.678, 0.00001) }} {{ '%c' % 'x' }}", "{{ '%s %s' % 'a' }}", "{{ '%s' % ('a', 'b') }}", "{{ '%d' % 'a' }}", "{{ '%q' % 1 }}", "{{ '%s' % none }} {{ '%d' % 3.9 }} {{ '%5s|' % 'é' }}",
    ],
    "striptags": [
        "{{ html | striptags }} {{ '<b>a</b>  <i\nx>b</i>\tc' | striptags }} {{ '<!-- <p> --> x <!-- y' | striptags }}",
        "{{ 'a < b > c << d' | striptags }} {{ '&lt;b&gt; &amp;amp; &quot;&#39;&#x41;&#0; &apos;&nbsp;' | striptags }}",
        "{{ '&amp &ltx &copy; &#65 &#x110000; &#128; &; &nosuch &#; &#xD800;' | striptags }} {{ html | safe | striptags }}",
        "{{ ['<a>', 1] | striptags }} {{ 5 | striptags }} {{ ('<b>x</b>' | striptags) ~ '<' }}",
    ],
    "wordwrap": [
        "{{ 'the quick brown fox jumps over the lazy dog' | wordwrap(10) }}",
        "{{ 'a verylongwordthatdoesnotfit b' | wordwrap(8) }}|{{ 'a verylongwordthatdoesnotfit b' | wordwrap(8, false) }}",
        "{{ text | wordwrap(6) }}|{{ 'x  y   z' | wordwrap(4, wrapstring='<br>') }}",
        "{{ 'well-known semi-automatic x--y --option a-1 1-a re-re-do' | wordwrap(9) }}",
        "{{ 'well-known semi-automatic' | wordwrap(9, break_on_hyphens=false) }}|{{ s | wordwrap(5) }}",
        "{{ '' | wordwrap }}|{{ '  lead and trail  ' | wordwrap(6) }}|{{ 'a\n\nb c' | wordwrap(1) }}",
        "{{ 'ab' | wordwrap(0) }}", "{{ 5 | wordwrap }}", "{{ 'a b' | wordwrap('x') }}", "{{ 'co-op--or' | wordwrap(3) }}",
        "{{ 'one---two three' | wordwrap(4) }}|{{ '(-a) x- -y z' | wordwrap(3) }}|{{ 'naïve-élan Straße-ab' | wordwrap(7) }}",
        "{{ 'aa-bb-cc-dd' | wordwrap(4) }}|{{ 'word\u00a0word x' | wordwrap(5) }}|{{ 'tab\tx y' | wordwrap(4) }}",
    ],
    "filesizeformat": [
        "{{ 0 | filesizeformat }} {{ 1 | filesizeformat }} {{ 999 | filesizeformat }} {{ 1000 | filesizeformat }} {{ 1500000 | filesizeformat }}",
        "{{ 1024 | filesizeformat(true) }} {{ 1536000 | filesizeformat(binary=true) }} {{ 5e12 | filesizeformat }} {{ big | filesizeformat }}",
        "{{ '13000' | filesizeformat }} {{ -5 | filesizeformat }} {{ -5000 | filesizeformat }} {{ 1e30 | filesizeformat }} {{ 0.5 | filesizeformat }}",
        "{{ 'x' | filesizeformat }}", "{{ none | filesizeformat }}", "{{ [] | filesizeformat }}",
    ],
    "xmlattr": [
        "<a{{ {'class': 'x \"y\"', 'id': none, 'n': 5, 'missing': missing} | xmlattr }}>",
        "<a{{ {'a': '<&>'} | xmlattr(false) }}>", "{{ {} | xmlattr }}", "{{ {'a b': 1} | xmlattr }}",
        "{{ {'a>': 1} | xmlattr }}", "{{ {1: 1} | xmlattr }}", "{{ [1] | xmlattr }}", "{{ {'a': none} | xmlattr }}",
    ],
    "wrong values": [
        "{{ 'a' | batch(0) | list }}", "{{ 'ab' | batch(-1) | list }}", "{{ 'ab' | slice('x') | list }}",
        "{{ 'ab' | slice(0) | list }}", "{{ 'ab' | center('x') }}", "{{ 5 | indent }}", "{{ 'a' | indent('>') }}",
        "{{ 5 | truncate }}", "{{ 'a' | truncate(1) }}", "{{ 'a' | truncate(length='x') }}", "{{ 'a' | round }}", "{{ none | round }}",
        "{{ 1 | round(method='x') }}", "{{ 'a' | abs }}", "{{ [1] | sum(start='a') }}", "{{ ['a'] | sum }}", "{{ [1, 'a'] | sort }}",
        "{{ [1, 'a'] | max }}", "{{ [{}] | unique | list }}", "{{ [[1]] | unique | list }}", "{{ d | dictsort(by='x') }}",
        "{{ [1] | dictsort }}", "{{ 5 | join }}", "{{ 5 | list }}", "{{ 5 | length }}", "{{ 5 | reverse }}", "{{ 5 | first }}",
        "{{ 5 | last }}", "{{ 5 | map('upper') | list }}", "{{ 5 | select | list }}", "{{ 5 | items | list }}", "{{ 'a' | map | list }}",
        "{{ 'a' | map('nope') | list }}", "{{ 'a' | select('nope') | list }}", "{{ 'a' | selectattr | list }}", "{{ 5 | groupby('a') }}",
        "{{ 5 | tojson(indent='x') }}", "{{ 'a' | replace(1, 2) }}", "{{ 'zz' | int(7, 36) }}",
        "{{ 'a' | trim(5) }}", "{{ '%d' | format('x') }}", "{{ '%s' | format(1, 2) }}", "{{ 'a' | attr(5) }}", "{{ 7 is divisibleby 0 }}",
        "{{ 'a' is odd }}", "{{ 'a' is gt 5 }}", "{{ 5 is in 5 }}", "{{ none is lt none }}", "{{ 5 is divisibleby 'a' }}",
        "{{ 1 | urlencode }}", "{{ 'a b/ü' | urlencode }} {{ {'a b': 'c/d', 'e': 1} | urlencode }} {{ [('x', 'y z')] | urlencode }}",
        "{{ [1, 2] | urlencode }}", "{{ none | urlencode }} {{ true | urlencode }}", "{{ 'x' | urlencode is string }}",
    ],
    "syntax errors": [
        "{{ 1 +", "{% if %}x{% endif %}", "{% if true %}x", "{% endif %}", "{% for x %}{% endfor %}", "{{ }}", "{{ (1 }}", "{{ 'open }}", "{# open", "{% raw %}x", "{% nope %}", "{% set 1 = 2 %}", "{{ a b }}", "{% macro f(a=1, b) %}{% endmacro %}", "{{ 1 ! 2 }}", "{{ x is defined is defined }}", "{% break %}", "{{ 'a' | }}", "{{ f(a=1, 2) }}", "{% else %}", "{{ a. }}", "{% set true = 1 %}", "{{ [1, 2 }}", "{{ '\\N{nope}' }}", "{% for a in b %}{% else %}",
    ],
}


# Every filter and test of what is nothing: none, undefined, empty, false. A generator is listed.
NOTHING = ["nothing", "missing", "''", "[]", "{}", "0", "false"]
FILTERS = """abs|attr('a')|batch(2)|capitalize|center(3)|count|default('x')|default('x', true)|d('x')
dictsort|e|escape|filesizeformat|first|float|forceescape|format|groupby('a')|indent|int|items|join(',')|last
length|list|lower|map('upper')|map(attribute='a')|max|min|reject|reject('odd')|rejectattr('a')
replace('a', 'b')|reverse|round|safe|select|select('odd')|selectattr('a')|selectattr('a', 'equalto', 1)
slice(2)|sort|string|striptags|sum|title|tojson|trim|truncate|unique|upper|urlencode|wordcount
wordwrap|xmlattr""".replace(
    "\n", "|"
).split("|")
TESTS = """boolean callable defined divisibleby(2) eq(0) equalto(0) escaped even false float ge(0) gt(0)
in([0]) integer iterable le(0) lower lt(0) mapping ne(0) none number odd sameas(none) sequence string
true undefined upper""".split()
LAZY = ("batch", "map", "reject", "select", "reverse", "slice", "unique", "items")
FEATURES["filters of nothing"] = [
    f"{{{{ {value} | {name}{' | list' if name.startswith(LAZY) else ''} }}}}"
    for name in FILTERS
    for value in NOTHING
]
FEATURES["tests of nothing"] = [
    f"{{{{ {value} is {name} }}}}" for name in TESTS for value in NOTHING
]


def render(template: str) -> dict:
    try:
        return {"expected": _compile_jinja_template(template).render(**CONTEXT)}
    except Exception as error:  # the kind of error is part of the golden
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    cases = [
        {"feature": feature, "template": template, **render(template)}
        for feature, templates in FEATURES.items()
        for template in templates
    ]
    target = pathlib.Path(__file__).parent.parent / "text" / "jinja" / "features.json"
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    context = json.dumps(CONTEXT, ensure_ascii=False)
    target.write_text(f'{{"context": {context},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} cases, {sum('error' in case for case in cases)} of them errors: {target}")


if __name__ == "__main__":
    main()
