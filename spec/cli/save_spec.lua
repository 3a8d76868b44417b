local save = require "fewhead.cli.save"

-- The script's text below its head.
local function body(kept)
  local text, count = save.text("x.lua", kept)
  return assert(text, count):match('local fh = require "fewhead"\n(.*)$'), count
end

describe("save.text", function()
  it("has a head comment that names the file, the day and the version", function()
    local text = save.text("first.lua", { { n = 1, text = "x = 1" } })
    assert.equal(("-- Saved from the prompt on %s, fewhead %s: the statements that succeeded, in their order.\n--\n"
      .. "--     fewhead run first.lua\nlocal fh = require \"fewhead\"\n\nx = 1\n"):format(os.date("%Y-%m-%d"),
      require("fewhead").VERSION), text)
  end)

  it("prints what the prompt printed, a comment at its end too", function()
    local text, count = body { { n = 1, text = "local x = 2" }, { n = 2, text = "= x + 1 -- three\n", expression = true } }
    assert.equal("\nlocal x = 2\nprint(x + 1 -- three\n\n)\n", text)
    assert.equal(2, count)
  end)

  it("prints an expression behind statements", function()
    assert.equal("\nx = 2;print(x + 1)\n", (body { { n = 1, text = "x = 2; x + 1", expression = true } }))
  end)

  it("keeps _ and Out[n] where a statement uses them", function()
    local text = body { { n = 2, text = "20 + 1", expression = true }, { n = 5, text = "_ * 2, Out[2]", expression = true } }
    local printed = {}
    local chunk = setfenv(assert(loadstring(text)), { print = function(...) printed[#printed + 1] = { ... } end })
    chunk()
    assert.same({ { 21 }, { 42, 21 } }, printed)
    assert.is_nil((body { { n = 1, text = "'_ and Out'", expression = true } }):find("local Out", 1, true))
  end)

  it("leaves out return, which ends a script", function()
    local text, count = body { { n = 1, text = "return 5" }, { n = 2, text = "x = 1" } }
    assert.equal("\nx = 1\n", text)
    assert.equal(1, count)
  end)

  it("makes globals of locals where a script may not have so many", function()
    local kept = {}
    for i = 1, 201 do kept[i] = { n = i, text = ("local x%d = %d"):format(i, i) } end
    local environment = { require = require }
    setfenv(assert(loadstring((save.text("x.lua", kept)))), environment)()
    assert.equal(201, environment.x201)
  end)

  it("refuses a session without a statement that succeeded", function()
    assert.same({ n = 2, nil, "no statement has succeeded yet" }, { n = 2, save.text("x.lua", {}) })
  end)
end)
