-- Does a kernel hurt quality? Compares two arms' right and wrong answers item by item.
-- It also says how many chunks of such a run a gate sends to native heads at all: a route that was not taken proves nothing.
--
--   ./fewhead run experiments/flips.lua --before padded.jsonl --after native.jsonl   # {"id": 1, "right": true} a line
--   ./fewhead run experiments/flips.lua --questions test.jsonl --concurrency 64         # {"question": "..."} a line
--
-- Answer for the published run on 8 H20 (1319 GSM8K items, 7 turned right, 5 wrong): p = 0.77, no difference seen.
local fh = require "fewhead"

local of = fh.questions.rows.by_key -- the options of fh.questions that this script has too
local opt = fh.options {
  name = "flips", usage = "fewhead run experiments/flips.lua --before FILE --after FILE | --questions FILE [options]",
  about = "McNemar's exact test on two arms' answers; or which chunks of a question set a gate routes to native heads.",
  options = {
    { "--before", "FILE", "items of the first arm" },
    { "--after", "FILE", "items of the second arm" },
    fh.flips.rows.by_key.id, fh.flips.rows.by_key.right,
    { "--questions", "FILE", "questions whose prompts are replayed through the scheduler" },
    of.concurrency, of.output, of.shots, of.min_sq,
  },
}:read(arg)

local function need(value, err) return fh.experiment.need("flips", value, err) end
if not opt.questions and not (opt.before and opt.after) then
  fh.cli.exit(fh.cli.USAGE, "flips: nothing to compare, wanted --before FILE and --after FILE, or --questions FILE")
end

if opt.before and opt.after then
  print(need(fh.flips.compare(opt.before, opt.after, { id = opt.id, right = opt.right })))
end
if opt.questions then
  local set = need(fh.questions.read(opt.questions, { output = opt.output, shots = opt.shots }))
  print(set:routed { concurrency = opt.concurrency, min_sq = opt.min_sq })
end
