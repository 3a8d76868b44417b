-- The worker process: what it answers, and how its end is told.
local helper = require "spec.helper"
local plugin = require "spec.plugin"
local posix = require "fewhead.base.posix"
local provider = require "fewhead.device.provider"
local worker = require "fewhead.measure.worker"

local folder = helper.folder()
plugin.example(folder) -- which toy is made of
local toy = plugin.toy(folder, "toy")
teardown(function() helper.shell("rm -rf " .. folder) end)

local CASE = require("fewhead.case.case")({ s_q = 2, s_kv = 64, topk = 16, pattern = "uniform" }):describe()

local function check(paths) return "measure.grid", "check_there", {
  case = CASE, paths = paths, against = "reference", call = {}, flops = 1e9,
} end

-- A worker with the toy of this manner, and calls of it.
local function with(manner)
  return assert(worker.open { device = "cpu", threads = 1, providers = { assert(provider.load(toy, "toy", manner)) } })
end

local function called(crew, paths, limits)
  local module, name, arguments = check(paths)
  return crew:call(module, name, arguments, limits)
end

describe("worker", function()
  it("calls a function on a device of its own, and hands on what comes next", function()
    local crew, phases = with("good"), {}
    local function phase(name, path) phases[#phases + 1] = name .. " " .. path end
    local answer = called(crew, { "gather", "toy" }, { phase = phase })
    assert.same({ "pass", "pass" }, { answer.value.results[1].status, answer.value.results[2].status })
    assert.same({ "parity gather", "parity toy" }, phases)
    assert.not_equal(posix.pid(), crew.process:get_pid())
    crew:close()
    crew:close()
  end)

  it("gives back a refusal and what is raised", function()
    local crew = with("good")
    assert.same({ "sweep: paths[1]: got \"gahter\"", nil }, { crew:call("decide.cell", "describe", {
      paths = { "gahter" }, how = {} }).err:match("^[^,]+") })
    assert.matches("case: s_q: got nil", crew:call("measure.grid", "check_there", {}).raised)
    assert.is_number(crew.process:get_pid()) -- and goes on
    crew:close()
  end)

  it("tells signals, exit statuses and calls that take too long, and whose code ran", function()
    for manner, wanted in pairs {
      crashes = { phase = "parity", path = "toy", code = 11, text = "signal 11 (Segmentation fault)" },
      exits = { phase = "parity", path = "toy", code = 3, text = "status 3" },
      exits0 = { phase = "parity", path = "toy", code = 0, text = "status 0" },
      hangs = { phase = "parity", path = "toy", text = "one call took more than 0.4 s" },
    } do
      local crew = with(manner)
      local failure = called(crew, { "gather", "toy" }, { provider_seconds = 0.4 }).failure
      assert.equal("toy", failure.provider)
      assert.same(wanted, { phase = failure.phase, path = failure.path, code = failure.code, text = failure.text })
      assert.equal("pass", called(crew, { "gather" }).value.results[1].status) -- in a new process
      crew:close()
    end
  end)

  it("ends a call that takes too long as a whole", function()
    local crew = with("hangs")
    assert.equal("no answer in 0.3 s", called(crew, { "toy" }, { seconds = 0.3 }).failure.text)
    assert.same({ late = true }, called(crew, { "toy" }, { deadline = worker.now() + 0.3 }))
    crew:close()
  end)

  it("goes on with the call that is expected next, and takes another one in a new process", function()
    local function call(paths)
      local module, name, arguments = check(paths)
      return { module = module, name = name, arguments = arguments }
    end
    local crew = with("good")
    local function run(one, ahead)
      local answer = crew:call(one.module, one.name, one.arguments, { ahead = ahead })
      local said = {}
      for i, result in ipairs(answer.value.results) do said[i] = result.path .. " " .. result.status end
      return table.concat(said, ", "), crew.process:get_pid()
    end
    local padded, gather, packed = call { "padded" }, call { "gather" }, call { "packed", "toy" }
    local text, first = run(padded, gather)
    assert.equal("padded pass", text)
    assert.same({ "gather pass", first }, { run(gather, packed) })
    assert.same({ "packed pass, toy pass", first }, { run(call { "packed", "toy" }, gather) }) -- equal, if not the same table
    local again, second = run(padded)
    assert.equal("padded pass", again)
    assert.not_equal(first, second)
    assert.same({ "gather pass", second }, { run(gather) })
    crew:close()
  end)

  it("blames the call that ends the process, whether it was sent ahead or not", function()
    local crew = with("crashes")
    local module, name, arguments = check { "gather", "toy" }
    local ahead = { module = module, name = name, arguments = arguments }
    assert.equal("pass", called(crew, { "gather" }, { ahead = ahead }).value.results[1].status)
    local failure = crew:call(module, name, arguments).failure
    assert.same({ "toy", "parity", "toy", 11 }, { failure.provider, failure.phase, failure.path, failure.code })
    assert.equal("pass", called(crew, { "gather" }).value.results[1].status)
    crew:close()
  end)

  it("says why it cannot be opened", function()
    assert.same({ nil, 'name: got "abacus", wanted cpu, cuda or cuda:N' }, { worker.open { device = "abacus" } })
    local gone = assert(provider.load(toy, "toy", "good"))
    gone.path = folder .. "none.so"
    assert.matches("none%.so", select(2, worker.open { device = "cpu", providers = { gone } }))
  end)
end)
