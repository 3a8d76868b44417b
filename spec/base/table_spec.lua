local tables = require "fewhead.base.table"

describe("table.text", function()
  local columns = {
    { key = "s_q" },
    { key = "verdict", align = "left" },
    { key = "ratio", title = "padded / native", format = "%.2f" },
    { key = "us", format = function(us, row) return tables.time(us) .. (row.s_q == 64 and "*" or "") end },
  }
  local rows = { { s_q = 64, verdict = "slower", ratio = 0.5, us = 85.07 }, { s_q = 2048, verdict = "faster", us = 2.5e6 } }

  it("aligns columns, prints nil as - and leaves no blanks at line ends", function()
    assert.equal(table.concat({
      " s_q  verdict  padded / native        us",
      "  64  slower              0.50  85.1 us*",
      "2048  faster                 -    2.50 s",
    }, "\n"), tables.text(rows, columns))
    assert.equal("a\nx", tables.text({ { a = "x" } }, { { key = "a", align = "left" } }))
  end)

  it("counts characters, not bytes", function()
    assert.equal("name  n\né     1", tables.text({ { name = "é", n = 1 } }, { { key = "name", align = "left" }, { key = "n" } }))
  end)

  it("prints the titles alone when there are no rows", function()
    assert.equal("s_q", tables.text({}, { { key = "s_q" } }))
  end)

  it("writes markdown with alignment, and escapes what would end a cell", function()
    assert.equal("| s_q | name |\n| ---: | --- |\n| 64 | a\\|b |\n",
      tables.markdown({ { s_q = 64, name = "a|b" } }, { { key = "s_q" }, { key = "name", align = "left" } }))
  end)
end)

describe("table.time", function()
  it("chooses the unit", function()
    assert.equal("999.9 us", tables.time(999.9))
    assert.equal("1.00 ms", tables.time(1000))
    assert.equal("1.50 s", tables.time(1.5e6))
  end)
end)

describe("table.text", function()
  it("refuses rows and columns that are no tables, on the caller's line", function()
    local refusal = require("spec.helper").refusal
    assert.equal("table: rows: got nil, wanted a table", refusal(function() local s = tables.text(nil, {}) return s end))
    assert.equal("table: columns: got 5, wanted a table", refusal(function() local s = tables.markdown({}, 5) return s end))
  end)
end)
