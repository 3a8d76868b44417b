local helper = require "spec.helper"
local process = require "spec.process"
local questions = require "fewhead.serve.questions"

-- Questions of so many letters, in a file.
local function with_questions(letters, use)
  local lines = {}
  for i, n in ipairs(letters) do lines[i] = ('{"question": "%s"}'):format(("x"):rep(n)) end
  helper.with_file(table.concat(lines, "\n") .. "\n", use)
end

describe("questions", function()
  it("have a token for four letters, examples before them, and outputs that differ", function()
    with_questions({ 400, 402 }, function(path)
      assert.same({ { 100, 128 + 37 }, { 101, 128 + 74 } }, assert(questions.read(path, { output = 256 })).lengths)
      assert.same({ { 300, 2 + 1 }, { 302, 2 + 2 } }, assert(questions.read(path, { output = 4, shots = 2 })).lengths)
    end)
  end)

  it("are routed by the chunks that a step packs, not by their own length", function()
    with_questions({ 400, 400, 400 }, function(path)
      local set = assert(questions.read(path, { output = 2 }))
      local together = set:routed { concurrency = 3, min_sq = 300 }
      assert.same({ 3, 1, 300, 1, 300 },
        { together.questions, together.chunks, together.rows, together.native_chunks, together.native_rows })
      local alone = set:routed { concurrency = 1, min_sq = 300 }
      assert.same({ 3, 300, 0, 0 }, { alone.chunks, alone.rows, alone.native_chunks, alone.native_rows })
      assert.equal("3 questions, 1 at a time, about 100 tokens each with 0 shots\n"
        .. "MIN_SQ 300 sends 0 of 3 chunks to native heads, 0.0 % of the rows", tostring(alone))
    end)
  end)

  it("refuse what is no question, by file and line", function()
    helper.with_file('{"question": "a"}\n{"text": "b"}\n', function(path)
      assert.same({ nil, path .. ":2: wanted an object with a question" }, { questions.read(path) })
    end)
    helper.with_file("", function(path) assert.same({ nil, path .. ": no question in it" }, { questions.read(path) }) end)
    assert.same({ nil, "/no/such: No such file or directory" }, { questions.read "/no/such" })
  end)

  it("come from the command line", function()
    with_questions({ 400, 400 }, function(path)
      local status, out, err = process.run { "./fewhead", "run", "flips", "--questions", path, "--concurrency", "2", "--min-sq",
        "200" }
      assert.same({ 0, "" }, { status, err })
      assert.equal("2 questions, 2 at a time, about 100 tokens each with 0 shots\n"
        .. "MIN_SQ 200 sends 1 of 1 chunks to native heads, 100.0 % of the rows\n", out)
    end)
    local status, _, err = process.run { "./fewhead", "run", "flips" }
    assert.same({ 2, "flips: nothing to compare, wanted --before FILE and --after FILE, or --questions FILE\n" }, { status, err })
  end)
end)
