--- Questions: which chunks of a question set a gate routes to native heads at all: a route that was not taken proves nothing.
--
--     local set = assert(fh.questions.read("test.jsonl", { output = 256, shots = 0 }))
--     print(set:routed { concurrency = 64, min_sq = 2048 })
local args = require "fewhead.base.arguments"
local json = require "fewhead.base.json"
local option = require "fewhead.base.option"
local gate = require "fewhead.decide.gate"
local scheduler = require "fewhead.serve.scheduler"
local workloads = require "fewhead.serve.workload"

local M = {}

local LETTERS_A_TOKEN = 4 -- of English text, roughly
local STRIDE = 37 -- outputs of neighbouring questions differ by so many tokens, so that they do not end together

--- The options of read and of routed (fewhead.base.option).
M.rows = option.rows("questions", {
  { "--concurrency", "INTEGER", "questions in flight", default = 64, lo = 1 },
  { "--output", "INTEGER", "most output tokens; each question takes between half of them and all", default = 256, lo = 1 },
  { "--shots", "INTEGER", "worked examples before each question, as long as the question", default = 0, lo = 0 },
  { "--min-sq", "INTEGER", "the gate", default = gate.default_min_sq, lo = 0 },
})

local Questions = { __name = "questions" }
Questions.__index = Questions

--- Read a JSONL file with { "question": text } a line. o: output, shots as in M.rows. Returns { lengths = { { prompt, output },
-- .. } in tokens, about, shots }; nil, "file:line: reason" for a line that is no question.
function M.read(path, o)
  args.string("questions.read: path", path)
  local set = option.table("questions.read", o, M.rows, 2)
  local file, err = io.open(path, "rb")
  if not file then return nil, err end
  local lengths, number, half = {}, 0, math.ceil(set.output / 2)
  for line in file:lines() do
    number = number + 1
    local item, reason = json.decode(line)
    local text = type(item) == "table" and item.question
    if type(text) ~= "string" then
      file:close()
      return nil, ("%s:%d: %s"):format(path, number, reason or "wanted an object with a question")
    end
    lengths[number] = {
      math.ceil(#text * (1 + set.shots) / LETTERS_A_TOKEN), half + number * STRIDE % math.ceil(set.output / 2 + 1),
    }
  end
  file:close()
  if number == 0 then return nil, path .. ": no question in it" end
  return setmetatable({ lengths = lengths, shots = set.shots }, Questions)
end

local Routed = { __name = "routed questions" }
Routed.__index = Routed

--- Replay the questions through the scheduler. o: concurrency, min_sq as in M.rows. Returns { questions, chunks, rows = of
-- prefill, native_chunks, native_rows = those that the gate sends to native heads, concurrency, min_sq, shots }, which prints as
-- two lines.
function Questions:routed(o)
  local set = option.table("questions:routed", o, M.rows, 2)
  local work = workloads.one_by_one("questions", self.lengths)
  work.concurrency = set.concurrency
  local found = setmetatable({
    questions = #self.lengths, chunks = 0, rows = 0, native_chunks = 0, native_rows = 0, concurrency = set.concurrency,
    min_sq = set.min_sq, shots = self.shots,
  }, Routed)
  scheduler.run(work, function(chunk)
    if chunk.s_q > 0 then
      local native = chunk.s_q >= set.min_sq
      found.chunks, found.rows = found.chunks + 1, found.rows + chunk.s_q
      found.native_chunks = found.native_chunks + (native and 1 or 0)
      found.native_rows = found.native_rows + (native and chunk.s_q or 0)
    end
    return 1
  end)
  return found
end

function Routed:__tostring()
  return ("%d questions, %d at a time, about %.0f tokens each with %d shots\n"
    .. "MIN_SQ %d sends %d of %d chunks to native heads, %.1f %% of the rows"):format(self.questions, self.concurrency,
    self.rows / self.questions, self.shots, self.min_sq, self.native_chunks, self.chunks, 100 * self.native_rows / self.rows)
end

return M
