--- Scheduler: what a chunked-prefill engine does with a workload, step by step, as vLLM's scheduler would.
--
--     local run = fh.scheduler.run(workload, step, { max_num_batched_tokens = 8192 })
--     print(#run.requests, run.steps, run.wall_us)
--
-- A step takes at most max_num_batched_tokens tokens. Requests that decode come first, one token each (1 + draft tokens
-- with speculative decoding); then prompts that are partly computed; then waiting requests in order of arrival, as long
-- as tokens are left. All prompt tokens of a step are one chunk: s_q of the attention call is their sum over the
-- requests. A step that ends a prompt gives that request its first output token; every later step gives it one more (or
-- those of the draft that were accepted).
--
-- Not modelled: preemption (memory for KV never runs out unless max_kv_tokens says so; then requests wait), the time
-- between a request's arrival and the scheduler seeing it, and steps that overlap on the host.
local args = require "fewhead.base.arguments"
local workloads = require "fewhead.serve.workload"
local option = require "fewhead.base.option"

local M = {}

--- vLLM's defaults for serving.
M.max_num_batched_tokens = 8192
M.max_num_seqs = 1024

-- Steps of pure decoding that are taken at once: their contexts grow meanwhile, and the middle stands for all.
local DECODE_RUN = 64

-- ---- A queue, and a heap by field `ends` ----------------------------------------------------------------------------

local function push(queue, value)
  queue.last = queue.last + 1
  queue[queue.last] = value
end

local function shift(queue)
  local value = queue[queue.first]
  queue[queue.first] = nil
  queue.first = queue.first + 1
  return value
end

local function queue() return { first = 1, last = 0 } end
local function size(q) return q.last - q.first + 1 end

local function heap_push(heap, value)
  local i = #heap + 1
  while i > 1 do
    local parent = math.floor(i / 2)
    if heap[parent].ends <= value.ends then break end
    heap[i] = heap[parent]
    i = parent
  end
  heap[i] = value
end

local function heap_pop(heap)
  local top, last, n = heap[1], heap[#heap], #heap - 1
  heap[n + 1] = nil
  if n > 0 then
    local i = 1
    while true do
      local child = 2 * i
      if child > n then break end
      if child < n and heap[child + 1].ends < heap[child].ends then child = child + 1 end
      if heap[child].ends >= last.ends then break end
      heap[i] = heap[child]
      i = child
    end
    heap[i] = last
  end
  return top
end

-- ---- Speculative decoding -------------------------------------------------------------------------------------------

-- Steps that a request needs for `tokens` more output tokens. Each of the draft tokens is accepted with probability
-- `acceptance` if all before it were (draft 0: one token a step).
local function decode_steps(tokens, draft, acceptance, draw)
  if draft == 0 then return tokens end
  local steps, left = 0, tokens
  while left > 0 do
    local got = 1
    while got <= draft and draw() < acceptance do got = got + 1 end
    steps, left = steps + 1, left - got
  end
  return steps
end

-- ---- The run --------------------------------------------------------------------------------------------------------

--- The options of run (fewhead.base.option).
M.rows = option.rows("scheduler.run", {
  { "--max-tokens", "INTEGER", "tokens of a step at most", key = "max_num_batched_tokens", default = M.max_num_batched_tokens,
    lo = 1 },
  { "--max-num-seqs", "INTEGER", "requests that run at once at most", default = M.max_num_seqs, lo = 1 },
  { "--max-model-len", "INTEGER", "tokens of a request at most", lo = 1 },
  { "--max-kv-tokens", "INTEGER", "tokens of all requests at most", lo = 1 },
  { "--draft", "INTEGER", "draft tokens of speculative decoding", default = 0, lo = 0 },
  { "--acceptance", "NUMBER", "chance of a draft token whose predecessors were accepted", lo = 0, hi = 1 },
  { "--seed", "INTEGER", "of acceptance", default = 0, lo = 0 },
  { "on_step", "FUNCTION", "called after each step" },
})

--- Run a workload. step(chunk) -> microseconds, asked once for each step with prompt tokens and once for each run of
-- equal decode steps: chunk = { s_q = prompt tokens, requests = n, from[1..n], to[1..n] = positions of the prompt that
-- request i computes: from .. to - 1, decodes = requests that decode, decode_tokens = tokens of theirs in the step,
-- decode_context = tokens of context of all of them }; the table is used again for the next step. options:
-- max_num_batched_tokens (8192), max_num_seqs (1024 requests run at once at most), max_model_len (tokens; a request
-- with more input + output fails), max_kv_tokens (a request waits until its input + output fits), draft (draft tokens
-- of speculative decoding, 0), acceptance (0 .. 1, of a draft token whose predecessors were accepted), seed (of
-- acceptance), on_step(chunk, us, start_us, steps). Returns { requests = { { sent_us, first_us, end_us, input, output,
-- cached }, .. } by end, failed = { { input, output, reason }, .. }, gaps = { { us, count }, .. } (time between tokens
-- of a request), steps, wall_us, prompt_tokens = computed ones }.
function M.run(workload, step, options)
  if not workloads.is(workload) then
    error(("scheduler.run: workload: got %s, wanted a workload, such as fh.workload.get gives"):format(args.show(workload)), 2)
  end
  local o = option.table("scheduler.run", options, M.rows, 2)
  local most, most_seqs = o.max_num_batched_tokens, o.max_num_seqs
  local longest, most_kv = o.max_model_len or 2 ^ 31, o.max_kv_tokens or 2 ^ 52
  local draft, acceptance = args.integer("scheduler.run: draft", o.draft, 0, most - 1, 2), o.acceptance or 0
  if o.acceptance and draft == 0 then error("scheduler.run: acceptance: has no effect without draft", 2) end
  local draw = workloads.draw(o.seed, "decode")
  local per_decode = 1 + draft

  local list, closed = workload.requests, workload.kind == "closed"
  local waiting, prefilling, decoding = queue(), {}, {} -- decoding: a heap by the step that ends a request
  local now, done_steps, decode_context, kv = 0, 0, 0, 0
  local sent, active = 0, 0
  local result = { requests = {}, failed = {}, gaps = {}, steps = 0, prompt_tokens = 0 }
  local chunk = { from = {}, to = {} }

  -- Sends request number `sent + 1`; one that can never run fails and does not hold a place.
  local function send(at)
    while sent < #list do
      sent = sent + 1
      local request = list[sent]
      local total = request.input + request.output
      local reason = request.output < 1 and ("output: got %d tokens, wanted at least 1"):format(request.output)
        or total > longest and ("input + output: got %d tokens, wanted at most max_model_len, %d"):format(total, longest)
        or total > most_kv and ("input + output: got %d tokens, wanted at most max_kv_tokens, %d"):format(total, most_kv)
      if not reason then
        push(waiting, { sent_us = closed and at or request.sent_us, input = request.input, output = request.output,
          cached = request.cached, position = request.cached })
        return
      end
      result.failed[#result.failed + 1] = { input = request.input, output = request.output, reason = reason }
      if not closed then return end
    end
  end

  local function arrive()
    while sent < #list and list[sent + 1].sent_us <= now do send(now) end
  end

  local function finish(request)
    request.end_us = now
    active, kv = active - 1, kv - request.input - request.output
    result.requests[#result.requests + 1] = request
    if closed then send(now) end
  end

  -- Admits waiting requests and fills the chunk; returns the tokens left.
  local function fill(budget)
    local n = 0
    local function take(request)
      local tokens = math.min(request.input - request.position, budget)
      n = n + 1
      chunk.from[n], chunk.to[n] = request.position, request.position + tokens
      chunk.s_q, budget = chunk.s_q + tokens, budget - tokens
      request.position = request.position + tokens
    end
    for _, request in ipairs(prefilling) do
      if budget > 0 then take(request) end
    end
    while budget > 0 and size(waiting) > 0 and active < most_seqs do
      local first = waiting[waiting.first]
      if kv + first.input + first.output > most_kv then break end
      shift(waiting)
      active, kv = active + 1, kv + first.input + first.output
      prefilling[#prefilling + 1] = first
      take(first)
    end
    chunk.requests = n
  end

  if closed then
    for _ = 1, math.min(workload.concurrency, #list) do send(0) end
  else
    arrive()
  end
  while true do
    if #decoding == 0 and #prefilling == 0 and size(waiting) == 0 then
      if sent >= #list then break end
      if not closed then
        now = math.max(now, list[sent + 1].sent_us)
        arrive()
      end
    end
    local decodes = #decoding
    if decodes + #prefilling + size(waiting) > 0 then
      chunk.s_q, chunk.requests = 0, 0
      chunk.decodes, chunk.decode_tokens = decodes, decodes * per_decode
      fill(most - math.min(most, chunk.decode_tokens))
      local steps = 1
      if chunk.s_q == 0 and decodes > 0 then
        steps = math.min(DECODE_RUN, decoding[1].ends - done_steps)
      end
      chunk.decode_context = decode_context + decodes * (steps - 1) / 2
      local us = step(chunk)
      -- An open loop's next request ends a run of decode steps.
      if steps > 1 and not closed and sent < #list then
        local until_next = math.ceil((list[sent + 1].sent_us - now) / us)
        steps = math.max(1, math.min(steps, until_next))
      end
      if o.on_step then o.on_step(chunk, us, now, steps) end
      now = now + us * steps
      done_steps, result.steps = done_steps + steps, result.steps + steps
      result.prompt_tokens = result.prompt_tokens + chunk.s_q
      decode_context = decode_context + decodes * steps
      if decodes > 0 then result.gaps[#result.gaps + 1] = { us, decodes * steps } end
      while #decoding > 0 and decoding[1].ends <= done_steps do
        local request = heap_pop(decoding)
        decode_context = decode_context - request.input - (request.ends - request.starts)
        finish(request)
      end
      local still = {}
      for _, request in ipairs(prefilling) do
        if request.position < request.input then still[#still + 1] = request
        else
          request.first_us = now
          local more = decode_steps(request.output - 1, draft, acceptance, draw)
          if more == 0 then finish(request)
          else
            request.starts, request.ends = done_steps, done_steps + more
            decode_context = decode_context + request.input
            heap_push(decoding, request)
          end
        end
      end
      prefilling = still
      if not closed then arrive() end
    end
  end
  result.wall_us = now
  return result
end

return M
