'use strict';
// Polls /status once a second (its JSON is documented in README.md beside this file) and streams the
// chat box through /v1/chat/completions. No library, no request to any other host.
const $ = (id) => document.getElementById(id);
let apiKey = sessionStorage.getItem('tandem-key') || '';
let modelId = '';
const headers = (extra) => Object.assign(apiKey ? {Authorization: 'Bearer ' + apiKey} : {}, extra);

const known = (v) => v !== null && v !== undefined && isFinite(v);
function seconds(s) {
  if (!known(s)) return '–';
  if (s < 0.001) return (s * 1e6).toFixed(0) + ' µs';
  if (s < 1) return (s * 1e3).toFixed(s < 0.01 ? 1 : 0) + ' ms';
  if (s < 120) return s.toFixed(s < 10 ? 2 : 1) + ' s';
  if (s < 7200) return Math.round(s / 60) + ' min';
  return (s / 3600).toFixed(1) + ' h';
}
function bytes(b) {
  if (!known(b)) return '–';
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (b < 1024) return (unit === 'B' ? b.toFixed(0) : b.toFixed(1)) + ' ' + unit;
    b /= 1024;
  }
  return b.toFixed(2) + ' TiB';
}
const count = (n) => !known(n) ? '–' : n < 10 && n % 1 ? n.toFixed(1) : Math.round(n).toLocaleString('en-US');
const percent = (r) => !known(r) ? '–' : (100 * r).toFixed(r < 0.1 ? 1 : 0) + ' %';

function element(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// Two series over time: `a` in the prefill colour, `b` in the decode colour.
function plot(canvas, history, a, b, format) {
  const ratio = window.devicePixelRatio || 1;
  const w = canvas.clientWidth, h = canvas.clientHeight;
  if (!w) return;
  canvas.width = w * ratio;
  canvas.height = h * ratio;
  const g = canvas.getContext('2d');
  const css = getComputedStyle(document.documentElement);
  g.scale(ratio, ratio);
  g.font = '11px system-ui, sans-serif';
  const values = history.flatMap((s) => [s[a], s[b]]).filter(known);
  const top = Math.max(1e-9, ...values) * 1.12;
  const left = 4, right = w - 4, bottom = h - 16, head = 14;
  const y = (v) => bottom - (bottom - head) * v / top;
  g.strokeStyle = css.getPropertyValue('--line');
  g.fillStyle = css.getPropertyValue('--quiet');
  for (const share of [0, 0.5, 1]) {
    const at = Math.round(bottom - (bottom - head) * share) + 0.5;
    g.beginPath(); g.moveTo(left, at); g.lineTo(right, at); g.stroke();
    if (values.length && share) g.fillText(format(top * share), left, at - 3);
  }
  g.fillText('3 min ago', left, h - 3);
  g.textAlign = 'right';
  g.fillText('now', right, h - 3);
  g.textAlign = 'left';
  if (!values.length) {
    g.fillText('no requests yet', w / 2 - 38, h / 2);
    return;
  }
  const span = 180;
  const end = history[history.length - 1].t;
  for (const [key, colour] of [[b, '--decode'], [a, '--prefill']]) {
    g.strokeStyle = g.fillStyle = css.getPropertyValue(colour);
    g.lineWidth = 1.75;
    g.lineJoin = 'round';
    g.beginPath();
    let pen = false;
    let last = null;
    for (const s of history) {
      if (!known(s[key])) { pen = false; continue; }
      const x = right - (right - left) * (end - s.t) / span;
      if (x < left) continue;
      pen ? g.lineTo(x, y(s[key])) : g.moveTo(x, y(s[key]));
      pen = true;
      last = [x, y(s[key])];
    }
    g.stroke();
    if (last) { g.beginPath(); g.arc(last[0], last[1], 2.5, 0, 7); g.fill(); }
  }
}

function legend(output, nameA, textA, nameB, textB) {
  output.replaceChildren(element('span', nameA + ' ' + textA, 'key-a'), ' · ', element('span', nameB + ' ' + textB, 'key-b'));
}

function showNodes(nodes) {
  $('no-nodes').hidden = nodes.length > 0;
  $('nodes').replaceChildren(...nodes.map((n) => {
    const row = document.createElement('tr');
    const cell = (text, className) => row.append(element('td', text, className));
    cell(n.id, 'mono');
    cell(n.role, 'role-' + n.role);
    const state = document.createElement('td');
    state.append(element('span', n.state, 'pill ' + (n.state === 'ready' ? 'ready' : n.state === 'lost' ? 'down' : 'wait')));
    row.append(state);
    cell(count(n.queued), 'num');
    cell(count(n.running), 'num');
    const kv = document.createElement('td');
    const bar = element('span', undefined, 'bar');
    const used = document.createElement('u'), cached = document.createElement('s');
    used.style.width = 100 * n.kv.used / (n.kv.total || 1) + '%';
    cached.style.width = 100 * n.kv.cached / (n.kv.total || 1) + '%';
    bar.append(used, cached);
    bar.title = n.kv.used + ' in use, ' + n.kv.cached + ' cached, ' + n.kv.free + ' free';
    kv.append(bar, count(n.kv.used) + ' / ' + count(n.kv.total));
    row.append(kv);
    cell(percent(n.prefix_hit_ratio), 'num');
    cell(count(n.tokens_per_second), 'num');
    cell(n.engine, 'mono');
    cell(n.transport, 'mono');
    row.title = (n.transport_detail || n.transport) + (n.transport_reason ? ': ' + n.transport_reason : '');
    return row;
  }));
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.map(([name, value]) => {
    const box = document.createElement('div');
    box.append(element('dt', name), element('dd', value));
    return box;
  }));
}

function show(s) {
  modelId = s.model.id;
  sampling = s.model.chat_sampling_params;
  $('model').textContent = s.model.id;
  $('version').textContent = s.version;
  $('uptime').textContent = 'up ' + seconds(s.uptime_seconds);
  $('state').textContent = s.ready ? 'ready' : 'waiting for nodes';
  $('state').className = 'pill ' + (s.ready ? 'ready' : 'wait');
  const of = (role) => s.nodes.filter((n) => n.role === role && n.state === 'ready');
  const sum = (nodes, key) => nodes.reduce((total, n) => total + (n[key] || 0), 0);
  $('flow-queue').textContent = count(s.queues.prefill.depth);
  $('flow-queue-note').textContent = 'of ' + count(s.queues.prefill.capacity) + (s.queues.prefill.depth ? ', oldest ' + seconds(s.queues.prefill.oldest_seconds) : '');
  $('flow-prefill').textContent = count(s.tokens_per_second.prompt);
  $('flow-prefill-note').textContent = 'tokens/s on ' + of('prefill').length + (of('prefill').length === 1 ? ' node' : ' nodes');
  $('flow-decode').textContent = count(s.tokens_per_second.output);
  $('flow-decode-note').textContent = 'tokens/s, ' + sum(of('decode'), 'running') + ' running, ' + sum(of('decode'), 'queued') + ' queued';
  $('flow-clients').textContent = count(s.requests.running);
  const r = s.requests;
  $('flow-clients-note').textContent = count(r.total - r.failed - r.rejected - r.left) + ' served, ' + count(r.failed) + ' failed' +
    (r.rejected ? ', ' + count(r.rejected) + ' rejected' : '') + (r.left ? ', ' + count(r.left) + ' left' : '');
  $('flow-wire').textContent = bytes(s.transfers.wire_bytes);
  $('flow-wire-note').textContent = s.transfers.count ? percent(s.transfers.wire_bytes / s.transfers.raw_bytes) + ' of bf16, ' + (s.transfers.transport || '') : (s.transfers.transport || 'no transfer yet');
  showNodes(s.nodes);
  facts($('transfers'), [
    ['Transfers', count(s.transfers.count)],
    ['Raw (as bf16)', bytes(s.transfers.raw_bytes)],
    ['On the wire', bytes(s.transfers.wire_bytes)],
    ['Prefill to decode p50', seconds(s.latency.prefill_to_decode.p50)],
    ['p99', seconds(s.latency.prefill_to_decode.p99)],
    ['Exposed / prefill time', percent(s.transfers.exposed_ratio)],
    ['Fail-overs', count(s.requests.failovers)],
    ['Retries', count(s.requests.retries)],
  ]);
  const h = s.history;
  const now = h[h.length - 1] || {};
  plot($('plot-ttft'), h, 'ttft_p50', 'ttft_p99', seconds);
  plot($('plot-itl'), h, 'itl_p50', 'itl_p99', seconds);
  plot($('plot-rate'), h, 'prompt_tps', 'output_tps', count);
  plot($('plot-load'), h, 'queued', 'running', count);
  legend($('now-ttft'), 'p50', seconds(s.latency.ttft.p50), 'p99', seconds(s.latency.ttft.p99));
  legend($('now-itl'), 'p50', seconds(s.latency.itl.p50), 'p99', seconds(s.latency.itl.p99));
  legend($('now-rate'), 'prompt', count(now.prompt_tps), 'output', count(now.output_tps));
  legend($('now-load'), 'queued', count(now.queued), 'running', count(now.running));
}

function askKey(again) {
  $('key-form').hidden = false;
  $('dashboard').hidden = true;
  $('key-error').textContent = again ? 'That key was refused.' : '';
  $('key').focus();
}

async function poll() {
  try {
    const reply = await fetch('/status', {headers: headers(), signal: AbortSignal.timeout(5000)});
    if (reply.status === 401) return askKey(apiKey !== '');
    if (!reply.ok) throw new Error('HTTP ' + reply.status);
    $('key-form').hidden = true;
    $('dashboard').hidden = false;
    show(await reply.json());
  } catch (error) {
    $('state').textContent = 'no answer from the router';
    $('state').className = 'pill down';
  }
  setTimeout(poll, 1000);
}

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  apiKey = $('key').value.trim();
  sessionStorage.setItem('tandem-key', apiKey);
  poll();
});

// ---- chat ----
const conversation = [];
let running = null;
let sampling = {};

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data: ') && line !== 'data: [DONE]') yield JSON.parse(line.slice(6));
    }
  }
}

async function ask(text) {
  const box = $('messages');
  if (!conversation.length) box.replaceChildren();
  conversation.push({role: 'user', content: text});
  box.append(element('p', text, 'user'));
  const answer = box.appendChild(element('p', '', 'assistant'));
  running = new AbortController();
  $('chat-send').textContent = 'Stop';
  const begin = performance.now();
  let first = 0, tokens = 0, usage = null;
  try {
    const reply = await fetch('/v1/chat/completions', {
      method: 'POST', signal: running.signal, headers: headers({'Content-Type': 'application/json'}),
      body: JSON.stringify({model: modelId, messages: conversation, stream: true, max_tokens: 512, ...sampling, stream_options: {include_usage: true}}),
    });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const event of events(reply.body)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const delta = event.choices && event.choices[0] && event.choices[0].delta.content;
      if (!delta) continue;
      first = first || performance.now();
      tokens += 1;
      answer.textContent += delta;
      box.scrollTop = box.scrollHeight;
    }
  } catch (error) {
    if (error.name !== 'AbortError') answer.append(element('span', error.message, 'bad'));
  }
  running = null;
  $('chat-send').textContent = 'Send';
  conversation.push({role: 'assistant', content: answer.textContent});
  const generated = usage ? usage.completion_tokens : tokens;
  if (first) {
    const rate = generated > 1 ? (generated - 1) / ((performance.now() - first) / 1000) : 0;
    $('chat-note').textContent = 'first token ' + seconds((first - begin) / 1000) + ', ' + generated + ' tokens' + (rate ? ', ' + rate.toFixed(1) + ' tokens/s' : '');
  }
}

$('chat-form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = $('chat-input').value.trim();
  if (!text) return;
  $('chat-input').value = '';
  ask(text);
});
$('chat-input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey) {
    event.preventDefault();
    $('chat-form').requestSubmit();
  }
});
poll();
