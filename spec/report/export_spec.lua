local fh = require "fewhead"
local helper = require "spec.helper"
local export = fh.export
local some = require "spec.report.some_records"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

-- Two records with what is hard: commas, quotes, line ends, lists, numbers beyond 2^53, a field that one of them lacks.
local function records()
  return {
    some.record(0.1, { cell = 'a,"b"\nc', case = { seed = 2 ^ 60 }, run = { tags = { night = "yes" } } }),
    some.record(2, { path = "packed", case = { ratio = 0.5, seed = 1 } }),
  }
end

describe("export.csv", function()
  it("has a line of names, a line a record, quotes where they are needed, and empty fields for what is not there", function()
    local parity = { status = "pass" }
    local text = export.csv { { path = "x", provider = "fewhead", case = { s_q = 64, prior = { 1, 2 } }, parity = parity,
      cell = 'a,"b"\nc' }, { path = "y", provider = "fewhead", case = { s_q = 0.1, lse = true }, parity = parity } }
    assert.equal('path,provider,case_lse,case_prior,case_s_q,parity_status,cell\r\n'
      .. 'x,fewhead,,"[1,2]",64,pass,"a,""b""\nc"\r\n'
      .. 'y,fewhead,true,,0.1,pass,\r\n', text)
  end)

  it("keeps numbers to the bit, and whole ones beyond 2^53 as text", function()
    local text = export.csv { { path = "x", case = { a = 1 / 3, b = 2 ^ 53, c = 2 ^ 60, d = 1e-7 } } }
    assert.equal("path,case_a,case_b,case_c,case_d\r\nx,0.33333333333333331,9007199254740992,1152921504606846976,1e-07\r\n", text)
  end)
end)

describe("export.markdown", function()
  it("has what varies as columns and what does not above", function()
    assert.equal(table.concat({
      "All rows: NVIDIA H200, 132 multiprocessors, csa lists, layout vllm, 8 heads, h_pad 64, d_qk 512, topk 640, hot caches, "
        .. "seed 0", "",
      "| s_q | path | median | p05 .. p95 | n | speed-up | over | waste | parity |",
      "| ---: | --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
      "| 64 | gather | 100.0 us | 99.0 us .. 101.0 us | 30 | - | - | 50.0 % | pass |",
      "| 128 | gather | - | - | - | - | - | 50.0 % | fail |", "",
    }, "\n"), export.markdown { some.record(100), some.failed { case = { s_q = 128 } } })
  end)

  it("keeps the ratio of compression and the speed-up apart", function()
    local text = export.markdown { some.record(100, { case = { ratio = 1 } }), some.record(50, { case = { ratio = 4 },
      verdict = { verdict = "faster", ratio = 2, lo = 2, hi = 2, against = "padded" } }) }
    assert.matches("\n| 1 | gather | 100.0 us | [^\n]- | %- | %- |", text)
    assert.matches("\n| 4 | gather | 50.0 us | [^\n]- | 2.00 | padded |", text)
  end)
end)

local sqlite = export.has_sqlite() and it
  or function(name) pending(name .. ": not run, there is no lua-dbi-sqlite3", function() end) end

describe("export.sqlite", function()
  sqlite("makes a table with a row a record, in place of what stood there", function()
    local path = helper.write(folder .. "x.sqlite", "no database")
    assert.is_true(export.sqlite(path, records()))
    local db = assert(require("DBI").Connect("SQLite3", path))
    local function rows(text)
      local statement = assert(db:prepare(text))
      assert(statement:execute())
      local list = {}
      for row in statement:rows() do list[#list + 1] = { unpack(row) } end
      statement:close()
      return list
    end
    assert.same({ { "gather", 'a,"b"\nc', "yes", 0.1, "1152921504606846976", "text" }, { "packed", nil, nil, 2, "1", "text" } },
      rows "SELECT path, cell, tags_night, time_median_us, case_seed, typeof(case_seed) FROM records ORDER BY path")
    assert.same({ { "integer", "real", "null" } },
      rows "SELECT typeof(case_s_q), typeof(time_p05_us), typeof(case_ratio) FROM records WHERE path = 'gather'")
    db:close()
    assert.equal("x.sqlite", (helper.shell("ls -A " .. folder)))
  end)

  sqlite("says why it cannot be written, and leaves what stood there", function()
    assert.same({ nil, "/dev/null/x.db: Not a directory" }, { export.sqlite("/dev/null/x.db", records()) })
  end)
end)

describe("export.write", function()
  it("goes by the file's ending", function()
    assert.is_true(export.write(folder .. "x.csv", records()))
    assert.matches("^path,provider,provider_version,case_d_qk,", helper.read(folder .. "x.csv"))
    assert.is_true(export.write(folder .. "x.md", records()))
    assert.matches("^All rows: ", helper.read(folder .. "x.md"))
    assert.same({ nil, 'got "x.xls", wanted a file that ends in .csv, .sqlite, .db or .md' },
      { export.write("x.xls", records()) })
  end)
end)
