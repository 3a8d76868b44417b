-- Traces: the times of both Azure files, and files of any size in bounded memory.
local helper = require "spec.helper"
local process = require "spec.process"
local trace = require "fewhead.serve.trace"

local HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

-- trace.read of these rows below the Azure header.
local function read(rows, options)
  local found, err
  helper.with_file(HEADER .. table.concat(rows, "\n") .. "\n", function(path)
    found, err = trace.read(path, options)
  end)
  return found, err
end

local function times(rows)
  local found = assert(read(rows))
  local list = {}
  for i, request in ipairs(found.requests) do list[i] = request.t_ms end
  return list
end

describe("Azure's times #robustness", function()
  it("of 2024: with and without a fraction, with a zone", function()
    local list = times { "2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:00.017335+00:00,2399,6",
      "2024-05-10 00:00:01+00:00,76,15", "2024-05-10 00:01:00Z,76,15" }
    for i, wanted in ipairs { 0, 7.405, 990.07, 59990.07 } do assert.near(wanted, list[i], 1e-3) end
  end)

  it("of 2023: seven digits and no zone", function()
    local list = times { "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109" }
    assert.near(4314.579, list[2], 1e-3)
  end)

  it("in other zones are the same moments", function()
    local list = times { "2024-05-10 00:00:00+00:00,1,1", "2024-05-10 05:30:01+05:30,1,1", "2024-05-09 16:00:02-08:00,1,1",
      "2024-05-10T00:00:03+00:00,1,1" }
    assert.same({ 0, 1000, 2000, 3000 }, list)
  end)

  it("that are none are refused with their row", function()
    for _, stamp in ipairs { "2024-05-10 00:00:00+0000", "2024-05-10 00:00:00+24:00", "2024-05-10 00:00:00+00:60",
      "2024-05-10 00:00:00.+00:00", "2024-05-10 00:00:00 UTC", "2024-05-10", "2023-02-29 00:00:00+00:00" } do
      local _, err = read { stamp .. ",1,1" }
      assert.matches(':2: TIMESTAMP: got "' .. stamp:gsub("%p", "%%%0")
        .. '", wanted YYYY%-MM%-DD HH:MM:SS%[%.fraction%]%[%+HH:MM%]$', err)
    end
  end)
end)

describe("JSON null #robustness", function()
  it("is shown as null where a trace and a record hold it", function()
    local args, json = require "fewhead.base.arguments", require "fewhead.base.json"
    assert.equal("null", args.show(json.null))
    assert.equal("{}", args.show {})
    helper.with_file('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, null]}\n', function(path)
      assert.equal(path .. ":1: hash_ids[2]: got null, wanted a whole number >= 0", (select(2, trace.read(path))))
    end)
    helper.with_file('{"timestamp": null, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n', function(path)
      assert.equal(path .. ":1: timestamp: got null, wanted a whole number >= 0", (select(2, trace.read(path))))
    end)
    helper.with_file('{"path": null}\n', function(path)
      assert.matches(":1: path: got null, wanted a string$", (select(2, require("fewhead.decide.sweep").read(path))))
    end)
  end)
end)

-- Reads what a shell command writes, in a process that may take so many MiB. Returns what the code prints, or the error.
local function read_from(command, mib, options)
  local code = ([[
    local trace = require "fewhead.serve.trace"
    local t, err = trace.read("/dev/stdin", { %s })
    io.write(t and #t.requests .. " requests, " .. t.skipped .. " skipped" or err)]]):format(options or "")
  local status, out, err = process.run(("{ %s; } | { ulimit -v %d; luajit -e %s; }"):format(command, mib * 1024,
    helper.quoted(code)), { env = { LUA_PATH = process.root .. "/lua/?.lua;;" } })
  return out .. err, status
end

describe("a large trace #robustness", function()
  local row = "2024-05-10 00:00:00.009930+00:00,2162,5"
  local header = ("printf %s"):format(helper.quoted(HEADER:gsub("\n", "\\n")))

  it("ten times as large as the memory is read", function()
    -- 300 MB: 2,500 blank lines of 120,000 characters, a request before and after them
    local lines = ("echo %s; yes \"$(printf %%120000s)\" | head -n 2500; echo %s"):format(row, row)
    assert.same({ "2 requests, 0 skipped", 0 }, { read_from(header .. "; " .. lines, 64) })
  end)

  it("with a line without end is refused by line, or skipped", function()
    local line = ("echo %s; head -c 300000000 /dev/zero; echo; echo %s"):format(row, row)
    assert.same({ "/dev/stdin:3: a line of more than 16777216 bytes", 0 }, { read_from(header .. "; " .. line, 256) })
    assert.same({ "2 requests, 1 skipped", 0 }, { read_from(header .. "; " .. line, 256, "skip_bad = true") })
    assert.same({ '/dev/stdin:1: no trace: wanted a JSON line, {"input_length": .., the Azure header '
      .. "TIMESTAMP,ContextTokens,GeneratedTokens, or the BurstGPT header "
      .. "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", 0 },
      { read_from("head -c 1100000000 /dev/zero", 256) })
  end)

  it("with more requests than memory holds is refused by its name", function()
    local rows = ("yes %s | head -n 3000000"):format(row)
    assert.same({ "/dev/stdin: not enough memory", 0 }, { read_from(header .. "; " .. rows, 128) })
  end)

  it("with more requests or blocks than a trace may hold is refused by its name", function()
    local most_requests, most_blocks = trace.most_requests, trace.most_blocks
    finally(function() trace.most_requests, trace.most_blocks = most_requests, most_blocks end)
    trace.most_requests = 2
    local _, err = read { row, row, row }
    assert.matches(": more than 2 requests, wanted at most that: cut the file$", err)
    assert.equal(2, #assert(read { row, row }).requests)
    trace.most_requests, trace.most_blocks = most_requests, 2
    helper.with_file('{"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2, 3]}\n', function(path)
      local _, blocks = trace.read(path)
      assert.equal(path .. ": more than 2 distinct blocks, wanted at most that: cut the file", blocks)
    end)
  end)
end)
