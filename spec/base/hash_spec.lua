local hash = require "fewhead.base.hash"
local helper = require "spec.helper"

describe("hash", function()
  it("is XXH64 with seed 0, in 16 digits", function()
    assert.equal("ef46db3751d8e999", hash.text(""))
    assert.equal("d24ec4f1a98c6e5b", hash.text("a"))
    assert.equal("44bc2cf5ad770999", hash.text("abc"))
  end)

  it("of a file is that of its bytes; a file that is not there is named", function()
    helper.with_file("a\0b", function(path) assert.equal(hash.text("a\0b"), hash.file(path)) end)
    assert.same({ nil, "/no/such: No such file or directory" }, { hash.file("/no/such") })
  end)

  it("falls into one of n parts, by its last 8 digits", function()
    assert.equal(0xa98c6e5b % 7, hash.part("d24ec4f1a98c6e5b", 7))
    assert.equal(0, hash.part("d24ec4f1a98c6e5b", 1))
  end)

  it("says what to install where there is no libxxhash", function()
    local out, status = helper.luajit([[
      local ffi = require "ffi"
      ffi.load = function() error("no library") end
      print(select(2, pcall(require("fewhead.base.hash").text, "a")))]])
    assert.same({ 0, "fewhead: no libxxhash.so.0, which names the cells of a sweep: apt-get install libxxhash0, or run make "
      .. "setup" }, { status, out })
  end)
end)
