// The parts of the web page that need no browser: conversations, imports, requests, streams, formulas, colours.
// Run by web_modules_test.py, which says where the modules are:  node --test web_modules_test.mjs
import assert from 'node:assert/strict';
import test from 'node:test';

const load = name => import(`file://${process.env.HEDDLE_WEB_FOLDER}/${name}.js`);
const {Conversation, apiMessages, asMarkdown, textOf} = await load('conversation');
const {FormatError, readConversation, readExport, sameMessages, withNewId, writeExport} = await load('exchange');
const {requestFields, SetupError, summaryOf} = await load('setup');
const {ApiError, serverEvents} = await load('api');
const {Reading, figuresText} = await load('reading');
const {parseMath} = await load('math');
const {pieces} = await load('highlight');
const {arranged, nameOf} = await load('branches');

const asked = (...contents) => {
  const conversation = new Conversation();
  let last = null;
  contents.forEach((content, i) => { last = conversation.add(last, {role: i % 2 ? 'assistant' : 'user', content}); });
  return conversation;
};
const shown = conversation => conversation.path().map(message => message.content);
const copied = conversation => readConversation(JSON.parse(JSON.stringify(conversation)));

test('an alternative hides what followed the other, and choosing brings it back', () => {
  const conversation = asked('q', 'a1', 'q2', 'a2');
  const [question, first] = conversation.path();
  const second = conversation.add(question, {role: 'assistant', content: 'b1'});
  assert.deepEqual(shown(conversation), ['q', 'b1']);
  conversation.choose(first);
  assert.deepEqual(shown(conversation), ['q', 'a1', 'q2', 'a2']);
  assert.deepEqual(conversation.children(question), [first, second]);
});

test('an edited first question is another root', () => {
  const conversation = asked('q', 'a');
  conversation.add(null, {role: 'user', content: 'edited'});
  assert.deepEqual(shown(conversation), ['edited']);
  assert.equal(conversation.children(null).length, 2);
});

test('a question that was never answered is replaced and not asked along with the next', () => {
  const conversation = asked('q', 'a', 'lost');
  assert.equal(conversation.placeForQuestion().content, 'a');
  conversation.add(conversation.path().at(-1), {role: 'assistant', content: '', state: 'failed', error: 'x'});
  assert.equal(conversation.placeForQuestion().content, 'a');
});

test('taking back leaves a conversation as it was', () => {
  const conversation = asked('q', 'a', 'q2');
  const before = JSON.stringify(conversation);
  const place = conversation.path()[1];
  conversation.takeBack(conversation.add(place, {role: 'user', content: 'x'}));
  assert.equal(JSON.stringify({...JSON.parse(JSON.stringify(conversation)), updated: 0}), JSON.stringify({...JSON.parse(before), updated: 0}));
});

test('copies of two tabs merge to the same messages, whichever is merged into which', () => {
  const one = asked('q', 'a');
  const two = copied(one);
  one.add(one.path()[1], {role: 'user', content: 'from one'});
  two.add(two.path()[1], {role: 'user', content: 'from two'});
  const three = copied(one), four = copied(two);
  assert.deepEqual(one.merge(two), {changed: true, ahead: false});
  four.merge(three);
  const contents = conversation => conversation.messages.map(message => message.content).sort();
  assert.deepEqual(contents(one), ['a', 'from one', 'from two', 'q']);
  assert.deepEqual(contents(four), contents(one));
  assert.deepEqual(shown(one), ['q', 'a', 'from one']);  // what was looked at stays
  assert.equal(one.merge(copied(one)).changed, false);
});

test('the longer state of a growing answer wins, and an ended one before an open one', () => {
  const one = asked('q');
  const answer = one.add(one.path()[0], {role: 'assistant', content: 'Once', state: 'open'});
  const two = copied(one);
  answer.content = 'Once upon';
  delete answer.state;
  assert.equal(two.merge(copied(one)).changed, true);
  assert.equal(two.path()[1].content, 'Once upon');
  assert.equal(two.path()[1].state, undefined);
  assert.deepEqual(one.merge(asked('q')).changed, true);  // of other ids: added, not mixed up
});

test('what the API is sent has files in fences, calls and results, and no failed answers', () => {
  const conversation = new Conversation();
  const question = conversation.add(null, {role: 'user', content: 'q', files: [{name: 'a.md', text: 'x\n```\ny'}]});
  conversation.add(question, {role: 'assistant', content: '', state: 'failed', error: 'x'});
  const call = conversation.add(question, {role: 'assistant', content: '', calls: [{id: 'c1', name: 'f', arguments: '{}'}]});
  conversation.add(call, {role: 'tool', results: [{id: 'c1', name: 'f', content: '20'}]});
  assert.deepEqual(apiMessages(conversation.path(), ' be brief '), [
    {role: 'system', content: 'be brief'},
    {role: 'user', content: 'File a.md:\n````\nx\n```\ny\n````\n\nq'},
    {role: 'assistant', content: '', tool_calls: [{id: 'c1', type: 'function', function: {name: 'f', arguments: '{}'}}]},
    {role: 'tool', tool_call_id: 'c1', content: '20'},
  ]);
  assert.match(asMarkdown(conversation), /^# q\n\n## You\n\n[\s\S]*Call of `f`:/);
});

test('an export comes back the same', () => {
  const conversation = asked('q', 'a', 'q2');
  conversation.add(conversation.path()[0], {role: 'assistant', content: 'b', reasoning: 'hm', state: 'cut',
    figures: {tokens: 3, first_ms: 1.5}, model: 'm', format: 'json'});
  conversation.setup = {system: 's', temperature: '0.5'};
  const [back] = readExport(writeExport([conversation]));
  assert.deepEqual(JSON.parse(JSON.stringify(back)), JSON.parse(JSON.stringify(conversation)));
  assert.ok(sameMessages(back, conversation));
  assert.ok(!sameMessages(back, asked('q')));
  const other = withNewId(back);
  assert.notEqual(other.id, back.id);
  assert.deepEqual(shown(other), shown(conversation));
});

test('hostile and broken files are refused with what is wrong', () => {
  const good = JSON.parse(writeExport([asked('q', 'a')]));
  const broken = change => {
    const copy = structuredClone(good);
    change(copy, copy.conversations[0], copy.conversations[0].messages);
    return JSON.stringify(copy);
  };
  const cases = [
    ['{', /not a JSON/], ['null', /no conversations/], ['7', /no conversations/], ['{}', /no export/], ['[]', /1 to/],
    ['{"format":"heddle-conversations","version":1}', /must be a list/],
    ['[{"role":"user"}]', /must be a text/], ['[{"role":"wizard","content":""}]', /wizard/],
    [broken(all => { all.version = 2; }), /version 2/],
    [broken((all, one) => { one.version = '1'; }), /conversation 1: .*version/],
    [broken((all, one) => { one.id = '../x'; }), /id of a conversation/],
    [broken((all, one) => { one.title = {}; }), /title must be a text/],
    [broken((all, one) => { one.title = 'x'.repeat(501); }), /more than 500/],
    [broken((all, one) => { one.messages = {}; }), /list of at most/],
    [broken((all, one, messages) => { messages[0].parent = messages[1].id; }), /does not come before/],  // a circle
    [broken((all, one, messages) => { messages[1].id = messages[0].id; }), /used twice/],
    [broken((all, one, messages) => { messages[0].id = '__proto__ '; }), /malformed/],
    [broken((all, one, messages) => { messages[0].content = ['x']; }), /content must be a text/],
    [broken((all, one, messages) => { messages[0].role = '<b>'; }), /no role/],
    [broken((all, one, messages) => { messages[0].created = 1e300; }), /time in milliseconds/],
    [broken((all, one, messages) => { messages[1].calls = [{id: 'x', name: 7}]; }), /calls.name/],
    [broken((all, one, messages) => { messages[1].calls = Array(65).fill({}); }), /at most 64/],
    [broken((all, one, messages) => { messages[1].role = 'tool'; }), /results must be/],
  ];
  for (const [source, problem] of cases) {
    assert.throws(() => readExport(source), error => error instanceof FormatError && problem.test(error.message), source);
  }
});

test('an import takes over known fields only', () => {
  const file = JSON.parse(writeExport([asked('q')]));
  const [one] = file.conversations;
  Object.assign(one, {evil: 1, setup: {system: 's', onload: 'x', tools: ['no text'], __proto__: {seed: '1'}}});
  Object.assign(one.messages[0], {innerHTML: '<b>', state: 'owned', figures: {tokens: '<b>', first_ms: 3, constructor: 7}});
  const source = JSON.stringify(file).replace('"evil"', '"__proto__":{"polluted":true},"evil"');
  const [back] = readExport(source);
  assert.equal({}.polluted, undefined);
  assert.equal(back.polluted, undefined);
  assert.equal(back.evil, undefined);
  assert.deepEqual(back.setup, {system: 's'});
  assert.deepEqual(Object.keys(back.messages[0]).sort(), ['content', 'created', 'figures', 'id', 'parent', 'role']);
  assert.deepEqual(back.messages[0].figures, {first_ms: 3});
});

test('a list of messages is a conversation, also 10,000 of them', () => {
  const messages = [{role: 'system', content: 's'}, ...Array.from({length: 10_000}, (_, i) =>
    ({role: i % 2 ? 'assistant' : 'user', content: `message ${i}`}))];
  const began = performance.now();
  for (const source of [messages, {messages}]) {
    const [conversation] = readExport(JSON.stringify(source));
    assert.equal(conversation.path().length, 10_000);
    assert.equal(conversation.setup.system, 's');
    assert.equal(readConversation(JSON.parse(JSON.stringify(conversation))).path().at(-1).content, 'message 9999');
  }
  assert.ok(performance.now() - began < 20_000, 'what takes a second took 20');
});

test('a setup becomes fields of a request', () => {
  const chat = {chat: true};
  assert.deepEqual(requestFields({}, chat), {});
  assert.deepEqual(requestFields({}, {chat: false}), {max_tokens: 256});
  assert.deepEqual(requestFields({temperature: '0', stop_text: 'a\nb\n', thinking: 'off', extra: '{"temperature": 1, "x": 2}'}, chat),
    {temperature: 1, x: 2, stop: ['a', 'b'], chat_template_kwargs: {enable_thinking: false}});
  const tool = {name: 'f', parameters: {}};
  assert.deepEqual(requestFields({tools: JSON.stringify([tool]), tool_choice: 'f'}, chat),
    {tools: [{type: 'function', function: tool}], tool_choice: {type: 'function', function: {name: 'f'}}});
  assert.deepEqual(requestFields({answer_format: 'schema', schema: '{"type": "object"}'}, chat).response_format,
    {type: 'json_schema', json_schema: {name: 'answer', strict: true, schema: {type: 'object'}}});
  assert.equal(summaryOf({seed: '7', tools: '[{"name":"f"}]', answer_format: 'json', max_tokens: '5'}, chat),
    'max tokens 5 · seed 7 · 1 tool · JSON');
});

test('a wrong setup names its field', () => {
  for (const [setup, field] of [
    [{tools: '{'}, 'tools'], [{tools: '{}'}, 'tools'], [{tools: '[{}]'}, 'tools'], [{answer_format: 'schema'}, 'schema'],
    [{answer_format: 'schema', schema: '[1]'}, 'schema'], [{extra: '[]'}, 'extra'], [{seed: 'x'}, 'seed'],
  ]) {
    assert.throws(() => requestFields(setup, {chat: true}), error => error instanceof SetupError && error.field === field, field);
  }
});

const streamOf = (...parts) => new ReadableStream({start(controller) {
  for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
  controller.close();
}});
async function eventsOf(...parts) {
  const events = [];
  for await (const event of serverEvents(streamOf(...parts))) events.push(event);
  return events;
}

test('events are read however the stream was cut', async () => {
  const text = 'data: {"a":"ä"}\r\n\r\n: ping\n\ndata:{"b":1}\n\ndata: [DONE]\n\ndata: {"c":1}\n\n';
  const bytes = new TextEncoder().encode(text);
  for (let cut = 0; cut < bytes.length; cut++) {
    const stream = new ReadableStream({start(controller) {
      controller.enqueue(bytes.slice(0, cut));
      controller.enqueue(bytes.slice(cut));
      controller.close();
    }});
    const events = [];
    for await (const event of serverEvents(stream)) events.push(event);
    assert.deepEqual(events, [{a: 'ä'}, {b: 1}]);
  }
});

test('a stream that ends early, has an error or is no JSON is an error', async () => {
  for (const [text, problem] of [
    ['data: {"a":1}\n\n', /ended before/], ['data: {"error":{"message":"broke"}}\n\n', /^broke$/], ['data: {"a"\n\n', /not JSON/],
  ]) {
    await assert.rejects(eventsOf(text), error => error instanceof ApiError && problem.test(error.message));
  }
});

test('an answer is read and measured', () => {
  let time = 1000;
  const message = {content: ''};
  const reading = new Reading(message, () => time);
  const take = (at, event) => { time = at; reading.take(event); };
  take(1050, {choices: [{delta: {role: 'assistant'}}]});
  take(1100, {choices: [{delta: {reasoning_content: 'hm'}}]});
  take(1200, {choices: [{delta: {content: 'Four'}}]});
  take(1600, {choices: [{delta: {content: '.'}, finish_reason: 'stop'}]});
  take(1600, {choices: [], usage: {completion_tokens: 11, prompt_tokens: 7, prompt_tokens_details: {cached_tokens: 2}}});
  assert.deepEqual(message, {content: 'Four.', reasoning: 'hm'});
  const figures = reading.figures();
  assert.equal(figures.first_ms, 100);
  assert.equal(figures.tokens_per_s, 20);  // 10 tokens after the first, in 0.5 s
  assert.equal(figuresText(figures), '11 tokens · first after 100 ms · 20.0 tokens/s');
  assert.equal(figuresText({tokens: 1}), '1 token');
});

test('calls of tools are put together from their pieces', () => {
  const message = {content: ''};
  const reading = new Reading(message, () => 0);
  const take = (...tool_calls) => reading.take({choices: [{delta: {tool_calls}}]});
  take({index: 0, id: 'a', function: {name: 'f', arguments: ''}});
  take({index: 0, function: {arguments: '{"x":'}}, {index: 1, id: 'b', function: {name: 'g', arguments: '{}'}});
  take({index: 0, function: {arguments: '1}'}});
  take({index: 99, id: 'c', function: {name: 'h'}});  // none began before it
  assert.deepEqual(message.calls, [{id: 'a', name: 'f', arguments: '{"x":1}'}, {id: 'b', name: 'g', arguments: '{}'}]);
});

test('a text is all of its path', () => assert.equal(textOf(asked('Once', ' upon').path()), 'Once upon'));

// The trees on the right are MathML as its specification describes the elements.
const tree = (text, display) => JSON.stringify(parseMath(text, display));
test('formulas become MathML', () => {
  const cases = [
    ['x^2', '["math",{},["msup",{},["mi",{},"x"],["mn",{},"2"]]]'],
    ['\\frac{1}{b_i}', '["math",{},["mfrac",{},["mn",{},"1"],["msub",{},["mi",{},"b"],["mi",{},"i"]]]]'],
    ['\\sqrt[3]{x}', '["math",{},["mroot",{},["mi",{},"x"],["mn",{},"3"]]]'],
    ['\\text{if } \\alpha', '["math",{},["mrow",{},["mtext",{},"if "],["mi",{},"α"]]]'],
    ['\\mathbb{R}', '["math",{},["mi",{},"ℝ"]]'],
  ];
  for (const [text, expected] of cases) assert.equal(tree(text), expected, text);
  assert.match(tree('\\sum_{i=1}^n i', true), /"munderover"/);
  assert.match(tree('\\begin{cases} 1 & x>0 \\\\ 0 \\end{cases}'), /"mtable",\{"class":"aligned"\},\["mtr",\{\},\["mtd".*"mtd".*"mtr"/);
});

test('formulas that are not understood are left alone', () => {
  for (const text of ['\\unknown', '{', '}', '\\frac{1}', '\\left( x', '\\begin{pmatrix} 1', '\\begin{tikz}\\end{tikz}', 'a & b',
    '\\constructor', '\\begin{constructor}\\end{constructor}', '{'.repeat(2000), '\\sqrt'.repeat(700), '{'.repeat(50) + '}'.repeat(50),
    'x'.repeat(5000)]) {
    assert.equal(parseMath(text), null, text.slice(0, 30));
  }
});

test('colours keep every character, in every language, and take no time to speak of', () => {
  let seed = 1;
  const random = below => { seed = (seed * 48271) % 2147483647; return seed % below; };
  const parts = ['"', "'", '`', '\\', '\n', '//', '/*', '*/', '#', '--', '<!--', '"""', ' ', 'if', 'x1', '0x1f', '1.5e3', '<a', '>', 'ä', '+', '-'];
  for (const language of ['c', 'go', 'python', 'sh', 'yaml', 'json', 'sql', 'html', 'css', 'lua', 'diff', 'none', '', 'constructor']) {
    for (let i = 0; i < 50; i++) {
      const text = Array.from({length: random(60)}, () => parts[random(parts.length)]).join('');
      assert.equal(pieces(text, language).map(([, piece]) => piece).join(''), text);
    }
    const began = performance.now();
    for (const part of parts) pieces(part.repeat(20_000), language);
    assert.ok(performance.now() - began < 20_000, language);
  }
  assert.deepEqual(pieces('x = "a" # b', 'python'), [[null, 'x = '], ['string', '"a"'], [null, ' '], ['comment', '# b']]);
  assert.deepEqual(pieces('{"a": "b"}', 'json').filter(([kind]) => kind).map(([kind]) => kind), ['key', 'string']);
});

test('branches stand below their tree, in its order, and other requests where they were', () => {
  const row = (number, tree, branch) => ({id: `r${number}`, number, tree, branch, state: 'running', age_ms: number, queued_ms: 1,
    prompt_tokens: 1, cached_tokens: 0, generated_tokens: number, preemptions: 1});
  const rows = arranged([row(9, 't', '0.10'), row(8), row(7, 't', '0.2'), row(6, 't', '0.2.0'), row(5, 'u', '0')]);
  assert.deepEqual(rows.map(nameOf), ['t', '\u2003└ 0.2', '\u2003\u2003└ 0.2.0', '\u2003└ 0.10', 'r8', 'u', '└ 0']);
  assert.equal(rows[0].state, '3 branches');
  assert.equal(rows[0].generated_tokens, 22);
  assert.equal(rows[0].age_ms, 9);
  assert.equal(rows[5].state, '1 branch');
  assert.deepEqual(arranged([]), []);
});
