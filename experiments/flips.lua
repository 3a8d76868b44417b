-- Does a kernel hurt quality? Compares two arms' right and wrong answers item by item.
-- It also says how many chunks of such a run a gate sends to native heads at all: a route that was not taken proves nothing.
--
--   ./fewhead run experiments/flips.lua --before padded.jsonl --after native.jsonl   # {"id": 1, "right": true} a line
--   ./fewhead run experiments/flips.lua --questions test.jsonl --concurrency 64         # {"question": "..."} a line
--
-- Answer for the published run on 8 H20 (1319 GSM8K items, 7 turned right, 5 wrong): p = 0.77, no difference seen.
local fh = require "fewhead"

local opt = fh.options {
  name = "flips", usage = "fewhead run experiments/flips.lua --before FILE --after FILE | --questions FILE [options]",
  about = "McNemar's exact test on two arms' answers; or which chunks of a question set a gate routes to native heads.",
  options = {
    { "--before", "FILE", "items of the first arm" },
    { "--after", "FILE", "items of the second arm" },
    fh.flips.rows.by_key.id, fh.flips.rows.by_key.right,
    { "--questions", "FILE", "questions whose prompts are replayed through the scheduler" },
    { "--concurrency", "INTEGER", "questions in flight", default = 64, lo = 1 },
    { "--output", "INTEGER", "most output tokens; each question takes between half of them and all", default = 256, lo = 1 },
    { "--shots", "INTEGER", "worked examples before each question, as long as the question", default = 0, lo = 0 },
    { "--min-sq", "INTEGER", "the gate", default = fh.gate.default_min_sq, lo = 0 },
  },
}:read(arg)

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "flips: " .. tostring(err)) end
  return value
end
if not opt.questions and not (opt.before and opt.after) then
  fh.cli.exit(fh.cli.USAGE, "flips: nothing to compare, wanted --before FILE and --after FILE, or --questions FILE")
end

if opt.before and opt.after then
  print(need(fh.flips.compare(opt.before, opt.after, { id = opt.id, right = opt.right })))
end

if opt.questions then
  local LETTERS_A_TOKEN = 4 -- of English text, roughly
  local lengths, number = {}, 0
  for line in io.lines(opt.questions) do
    number = number + 1
    local item, err = fh.json.decode(line)
    local text = type(item) == "table" and item.question
    if type(text) ~= "string" then
      need(nil, ("%s:%d: %s"):format(opt.questions, number, err or "wanted an object with a question"))
    end
    local output = math.ceil(opt.output / 2) + number * 37 % math.ceil(opt.output / 2 + 1) -- so that they do not end together
    lengths[number] = { math.ceil(#text * (1 + opt.shots) / LETTERS_A_TOKEN), output }
  end
  local work = fh.workload.one_by_one("questions", lengths)
  work.concurrency = opt.concurrency
  local chunks, rows, native_chunks, native_rows = 0, 0, 0, 0
  fh.scheduler.run(work, function(chunk)
    if chunk.s_q > 0 then
      local native = chunk.s_q >= opt.min_sq
      chunks, rows = chunks + 1, rows + chunk.s_q
      native_chunks, native_rows = native_chunks + (native and 1 or 0), native_rows + (native and chunk.s_q or 0)
    end
    return 1
  end)
  print(("%d questions, %d at a time, about %.0f tokens each with %d shots"):format(number, opt.concurrency, rows / number,
    opt.shots))
  print(("MIN_SQ %d sends %d of %d chunks to native heads, %.1f %% of the rows"):format(opt.min_sq, native_chunks, chunks,
    100 * native_rows / rows))
end
