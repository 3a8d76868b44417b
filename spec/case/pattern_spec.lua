local ffi = require "ffi"
local pattern = require "fewhead.case.pattern"

-- Row `i` (from 0) of the lists as a Lua table; `first` and `last` count entries from 1.
local function row(p, i, first, last)
  local list = {}
  for k = (first or 1) - 1, (last or p.topk) - 1 do list[#list + 1] = p.indices[i * p.topk + k] end
  return list
end

local function lengths(p)
  local list = {}
  for i = 0, p.s_q - 1 do list[i + 1] = p.topk_length[i] end
  return list
end

local function count(list, wanted)
  local n = 0
  for _, v in ipairs(list) do if wanted(v) then n = n + 1 end end
  return n
end

local function set(list)
  local s = {}
  for _, v in ipairs(list) do s[v] = true end
  return s
end

local function sorted(list)
  local copy = { unpack(list) }
  table.sort(copy)
  return copy
end

local function range(first, last)
  local list = {}
  for v = first, last do list[#list + 1] = v end
  return list
end

-- Keys over distinct keys of `group` neighbouring rows, over the whole chunk.
local function sharing(p, group)
  local keys, distinct, group_of = 0, 0, ffi.new("int32_t[?]", p.s_kv) -- counted from 1: the last group that lists a row
  for g = 1, p.s_q / group do
    for i = (g - 1) * group * p.topk, g * group * p.topk - 1 do
      local index = p.indices[i]
      if index >= 0 then
        keys = keys + 1
        if group_of[index] ~= g then group_of[index], distinct = g, distinct + 1 end
      end
    end
  end
  return keys / distinct
end

local function refused(message, ...)
  local arguments = { ... }
  local ok, err = pcall(function() pattern.make(unpack(arguments)) end)
  assert.is_false(ok)
  assert.equal(message, (err:gsub("^.*pattern_spec%.lua:%d+: ", "")))
  assert.matches("pattern_spec%.lua:%d+: ", err)
end

describe("pattern", function()
  describe("csa", function()
    it("lists the causal picks, then the window, then -1, by hand", function()
      local p = pattern.make("csa", { s_q = 6, window = 2, index_topk = 3, ratio = 2, holes = 0 })
      -- 3 compressed rows (tokens 0-1, 2-3, 4-5), then tokens 0 .. 5 as rows 3 .. 8
      assert.equal(9, p.s_kv)
      assert.equal(5, p.topk)
      assert.same({ 3, -1, -1, -1, -1 }, row(p, 0))
      assert.same({ 0, 3, 4, -1, -1 }, row(p, 1))
      assert.same({ 0, 4, 5, -1, -1 }, row(p, 2))
      assert.same({ 0, 1, 5, 6, -1 }, row(p, 3))
      assert.same({ 0, 1, 6, 7, -1 }, row(p, 4))
      assert.same({ 0, 1, 2, 7, 8 }, row(p, 5))
      assert.same({ 1, 3, 3, 4, 4, 5 }, lengths(p))
      assert.equal(20, p.valid)
      assert.equal(4, p.keys[3])
    end)

    it("starts late in a prompt when tokens are there already", function()
      local p = pattern.make("csa", { s_q = 2, window = 4, index_topk = 2, ratio = 4, prior = 18, holes = 0 })
      -- compressed: (18 + 2) / 4 = 5 rows; tokens 15 .. 19 as rows 5 .. 9
      assert.equal(10, p.s_kv)
      assert.same({ 5, 6, 7, 8 }, row(p, 0, 3))
      assert.same({ 6, 7, 8, 9 }, row(p, 1, 3))
      assert.equal(2, count(row(p, 0, 1, 2), function(v) return v >= 0 and v < 4 end)) -- 19 tokens: 4 whole blocks
      assert.equal(2, count(row(p, 1, 1, 2), function(v) return v >= 0 and v < 5 end))
      assert.same({ 6, 6 }, lengths(p))
    end)

    it("never sees a row that does not exist yet, at any ratio", function()
      for _, ratio in ipairs { 1, 2, 4, 128 } do
        for _, prior in ipairs { 0, 300, 5000 } do
          local s_q = 700
          local p = pattern.make("csa", { s_q = s_q, ratio = ratio, prior = prior, seed = 3, index_topk = 64, window = 32 })
          local compressed = math.floor((prior + s_q) / ratio)
          local first_token = math.max(0, prior - 31)
          assert.equal(compressed + prior + s_q - first_token, p.s_kv)
          for i = 0, s_q - 1 do
            local pos = prior + i
            local pool = math.floor((pos + 1) / ratio)
            local picks, window = math.min(pool, 64), math.min(pos + 1, 32)
            assert.equal(picks + window, p.topk_length[i])
            local chosen = row(p, i, 1, picks)
            assert.equal(0, count(chosen, function(v) return v >= pool or v < -1 end))
            local last = compressed + pos - first_token
            assert.same(range(last - window + 1, last), row(p, i, picks + 1, picks + window))
            assert.equal(96 - picks - window, count(row(p, i, picks + window + 1), function(v) return v == -1 end))
          end
        end
      end
    end)

    it("has the lists of V4.1: 640 wide, 512 picks and 128 window rows late in the prompt", function()
      local p = pattern.make("csa", { s_q = 8192, ratio = 4 })
      assert.equal(640, p.topk)
      assert.equal(2048 + 8192, p.s_kv)
      assert.same({ 1, 2, 3, 5 }, { p.topk_length[0], p.topk_length[1], p.topk_length[2], p.topk_length[3] })
      assert.equal(640, p.topk_length[8191])
      -- the mean over an 8k prompt at ratio 4 is 575
      local sum = 0
      for i = 0, 8191 do sum = sum + p.topk_length[i] end
      assert.equal(575, math.floor(sum / 8192 + 0.5))
      assert.equal(32768 + 8192 + 127, pattern.resolve("csa", { s_q = 8192, ratio = 4, prior = 131072 - 8192 }).s_kv)
    end)

    it("picks without repeats, and evenly", function()
      local p = pattern.make("csa", { s_q = 4000, prior = 999, s_kv = 9000, index_topk = 100, window = 0, holes = 0 })
      local hits, repeats = {}, 0
      for i = 0, p.s_q - 1 do
        local seen = {}
        for _, v in ipairs(row(p, i)) do
          if seen[v] then repeats = repeats + 1 end
          seen[v] = true
        end
      end
      assert.equal(0, repeats)
      for i = 0, 99 do -- rows that see 1000 .. 1099 keys
        for _, v in ipairs(row(p, i)) do hits[v] = (hits[v] or 0) + 1 end
      end
      -- 100 rows of 100 keys in a pool of about 1000: 10 hits expected a key, deviation 3
      local sum, squares = 0, 0
      for v = 0, 999 do
        local n = hits[v] or 0
        sum, squares = sum + n, squares + (n - 9.53)^2
      end
      assert.is_true(math.abs(sum / 1000 - 9.53) < 0.1)
      assert.is_true(squares / 1000 > 7 and squares / 1000 < 10.5)
    end)

    it("puts -1 holes among the picks at the rate asked for, and leaves the window whole", function()
      local options = { s_q = 1000, prior = 4000, seed = 5, holes = 0.2 }
      local p = pattern.make("csa", options)
      local holes = 0
      for i = 0, 999 do
        holes = holes + count(row(p, i, 1, 512), function(v) return v == -1 end)
        assert.equal(0, count(row(p, i, 513), function(v) return v < 0 end))
        assert.equal(640, p.topk_length[i])
      end
      assert.is_true(math.abs(holes / 512000 - 0.2) < 0.003)
      assert.equal(640000 - holes, p.valid)
      options.holes = nil
      p = pattern.make("csa", options) -- a hole in most lists where nobody says otherwise
      assert.is_true(p.valid < 640000 - 4000 and p.valid > 640000 - 7000)
    end)

    it("is an index over tokens alone where there is no window", function()
      local p = pattern.make("csa", { s_q = 3, index_topk = 2048, window = 0, prior = 5000, holes = 0 })
      assert.equal(2048, p.topk)
      assert.equal(5003, p.s_kv)
      assert.same({ 2048, 2048, 2048 }, lengths(p))
      assert.equal(3 * 2048, p.valid)
    end)
  end)

  describe("local", function()
    it("keeps exactly its share of the picks from row to row", function()
      local p = pattern.make("local", { s_q = 300, prior = 4000, keep = 0.9, holes = 0 })
      for i = 1, 299 do
        local before, now = set(row(p, i - 1, 1, 512)), set(row(p, i, 1, 512))
        assert.equal(461, count(row(p, i, 1, 512), function(v) return before[v] end)) -- 512 * 0.9, rounded
        assert.equal(512, count(range(0, 4299), function(v) return now[v] end))
      end
    end)

    it("keeps everything at 1 and nothing at 0", function()
      local p = pattern.make("local", { s_q = 50, prior = 4000, keep = 1, holes = 0 })
      assert.same(sorted(row(p, 0, 1, 512)), sorted(row(p, 49, 1, 512)))
      p = pattern.make("local", { s_q = 50, prior = 4000, keep = 0, holes = 0 })
      for i = 1, 49 do
        local before = set(row(p, i - 1, 1, 512))
        assert.equal(0, count(row(p, i, 1, 512), function(v) return before[v] end))
      end
    end)

    it("takes up the rows that become visible, and replaces no more than there are", function()
      local p = pattern.make("local", { s_q = 40, index_topk = 10, window = 0, keep = 0.5, holes = 0 })
      assert.same(range(0, 9), sorted(row(p, 9)))
      assert.equal(9, count(row(p, 10), function(v) return v < 10 end)) -- one row new, one free: it comes in
      for i = 10, 39 do
        local list = sorted(row(p, i))
        for k = 2, 10 do assert.is_true(list[k] > list[k - 1]) end
        assert.is_true(list[1] >= 0 and list[10] <= i)
      end
    end)

    it("shares what captured lists share", function()
      -- rows listed over distinct rows in 4, 8 and 16 neighbours of an 8k prompt at ratio 4: 3.41, 5.94 and 10.1 with 0.9 kept;
      -- 2.35, 4.18 and 8.1 drawn afresh
      local p = pattern.make("local", { s_q = 8192, ratio = 4, holes = 0 })
      assert.is_true(math.abs(sharing(p, 4) - 3.41) < 0.1)
      assert.is_true(math.abs(sharing(p, 8) - 5.94) < 0.2)
      assert.is_true(math.abs(sharing(p, 16) - 10.1) < 0.3)
      p = pattern.make("csa", { s_q = 8192, ratio = 4, holes = 0 })
      assert.is_true(math.abs(sharing(p, 4) - 2.35) < 0.1)
      assert.is_true(math.abs(sharing(p, 8) - 4.18) < 0.2)
      p = pattern.make("uniform", { s_q = 1024, s_kv = 10240 })
      assert.is_true(math.abs(sharing(p, 8) - 1.24) < 0.02)
    end)
  end)

  describe("window", function()
    it("lists the last tokens, in order", function()
      local p = pattern.make("window", { s_q = 5, window = 3, topk = 4 })
      assert.equal(5, p.s_kv)
      assert.same({ 0, -1, -1, -1 }, row(p, 0))
      assert.same({ 0, 1, -1, -1 }, row(p, 1))
      assert.same({ 0, 1, 2, -1 }, row(p, 2))
      assert.same({ 2, 3, 4, -1 }, row(p, 4))
      assert.same({ 1, 2, 3, 3, 3 }, lengths(p))
    end)

    it("reaches back into the context: 8 rows of V4.1 need 135 tokens", function()
      local p = pattern.make("window", { s_q = 8, prior = 1000 })
      assert.equal(128, p.topk)
      assert.equal(135, p.s_kv)
      assert.equal(8 * 128, p.valid)
      assert.equal(8 * 128 / 135, sharing(p, 8))
    end)
  end)

  describe("blocks", function()
    it("picks in rising order, without repeats, and keeps its share", function()
      local p = pattern.make("blocks", { s_q = 60, prior = 4000, keep = 0.9 })
      assert.equal(640, p.topk)
      for i = 0, 59 do
        local list = row(p, i, 1, 512)
        for k = 2, 512 do assert.is_true(list[k] > list[k - 1]) end
        assert.is_true(list[1] >= 0 and list[512] <= 4000 + i)
        if i > 0 then -- all blocks are candidates of so short a prompt
          local before = set(row(p, i - 1, 1, 512))
          assert.equal(461, count(list, function(v) return before[v] end))
        end
      end
    end)

    it("picks inside 2048 candidate blocks of a long prompt", function()
      local p = pattern.make("blocks", { s_q = 3, prior = 65533, index_topk = 16384, window = 0, keep = 0.9 })
      local before
      for i = 0, 2 do
        local blocks, n = {}, 0
        for _, v in ipairs(row(p, i, 1, 16384)) do
          local b = math.floor(v / 8)
          if v >= 0 and not blocks[b] then blocks[b], n = true, n + 1 end
        end
        assert.equal(2048, n)
        if before then
          local kept = 0
          for b in pairs(blocks) do kept = kept + (before[b] and 1 or 0) end
          assert.equal(2048 - 205, kept)
        end
        before = blocks
      end
    end)

    it("leaves out what the last block lacks", function()
      local p = pattern.make("blocks", { s_q = 1, prior = 16385, index_topk = 16384, window = 0, block = 8 })
      -- 16386 rows in 2049 blocks, the last of 2 rows
      local list = set(row(p, 0))
      assert.is_nil(list[16386])
      assert.is_true(lengths(p)[1] == 16384 or lengths(p)[1] == 16378)
    end)
  end)

  describe("pools", function()
    it("lists whole pools row by row, then the tail", function()
      local p = pattern.make("pools", { s_q = 3, prior = 11, index_topk = 8, seed = 1 })
      assert.same({ 11, 14 }, { p.topk, p.s_kv })
      assert.same({ 8, 9, 10 }, lengths(p)) -- 12, 13 and 14 tokens: 3 pools and a tail of 0, 1 and 2
      for i = 0, 2 do
        local list = row(p, i)
        for k = 1, 8, 4 do
          assert.equal(0, list[k] % 4)
          assert.is_true(list[k] >= 0 and list[k] <= 8)
          for e = 1, 3 do assert.equal(list[k] + e, list[k + e]) end
        end
        assert.is_true(list[1] ~= list[5])
        for t = 1, i do assert.equal(11 + t, list[8 + t]) end
        for k = 9 + i, 11 do assert.equal(-1, list[k]) end
      end
    end)

    it("takes every token while pools are few: s_kv of 1 to 5", function()
      local p = pattern.make("pools", { s_q = 5, index_topk = 8 })
      assert.same({ 1, 2, 3, 4, 5 }, lengths(p))
      for i = 0, 4 do assert.same(range(0, i), row(p, i, 1, i + 1)) end
    end)

    it("is 2051 wide as GLM-5.3-Flash has it, and keeps its share of pools", function()
      local p = pattern.make("pools", { s_q = 9, prior = 9001 })
      assert.equal(2051, p.topk)
      assert.same({ 2050, 2051, 2048 }, { lengths(p)[1], lengths(p)[2], lengths(p)[3] })
      for i = 1, 8 do
        local before = set(row(p, i - 1, 1, 2048))
        assert.equal(4 * 461, count(row(p, i, 1, 2048), function(v) return before[v] end))
      end
    end)
  end)

  describe("all", function()
    it("lists every compressed row that is there, then the window", function()
      local p = pattern.make("all", { s_q = 4, ratio = 4, window = 2, prior = 5 })
      assert.same({ 4, 7 }, { p.topk, p.s_kv }) -- 2 compressed rows, then tokens 4 .. 8
      assert.same({ 0, 2, 3, -1 }, row(p, 0))
      assert.same({ 0, 1, 5, 6 }, row(p, 3))
    end)

    it("shares all but the window's edge: 128k at ratio 128", function()
      local p = pattern.make("all", { s_q = 8, prior = 131064 })
      assert.equal(1024 + 128, p.topk)
      assert.equal(8 * 1151 + 1, p.valid)
      assert.equal((8 * 1151 + 1) / (1024 + 135), sharing(p, 8))
    end)
  end)

  describe("dense_prefix", function()
    it("lists the first tokens in order, as far as the row sees", function()
      local p = pattern.make("dense_prefix", { s_q = 4, topk = 3, prior = 1 })
      assert.equal(5, p.s_kv)
      assert.same({ 0, 1, -1 }, row(p, 0))
      assert.same({ 0, 1, 2 }, row(p, 1))
      assert.same({ 0, 1, 2 }, row(p, 3))
      assert.same({ 2, 3, 3, 3 }, lengths(p))
    end)
  end)

  describe("several requests in a chunk", function()
    it("own M rows each, compressed rows first", function()
      local p = pattern.make("csa", {
        s_q = 5, window = 2, index_topk = 2, ratio = 2, holes = 0, requests = { 2, 3 }, prior = { 4, 0 },
      })
      -- M = max((4 + 2) / 2, 3 / 2) = 3 compressed + max(2 + 1, 3) = 3 tokens
      assert.equal(12, p.s_kv)
      assert.same({ 3, 4 }, row(p, 0, 3)) -- request 0, position 4: tokens 3 and 4, of which 3 is the first kept
      assert.same({ 4, 5 }, row(p, 1, 3))
      assert.same({ 6 + 3, -1, -1, -1 }, row(p, 2)) -- request 1, position 0
      assert.same({ 6, 6 + 3, 6 + 4, -1 }, row(p, 3))
      assert.same({ 6, 6 + 4, 6 + 5, -1 }, row(p, 4))
      assert.same({ 4, 4, 1, 3, 3 }, lengths(p))
    end)

    it("share the rows evenly where only their number is given", function()
      assert.same({ 3, 3, 2 }, pattern.resolve("csa", { s_q = 8, requests = 3 }).requests)
      assert.same({ 7, 7, 7 }, pattern.resolve("csa", { s_q = 8, requests = 3, prior = 7 }).prior)
    end)

    it("take more KV memory than they need when given it", function()
      local p = pattern.make("window", { s_q = 4, window = 2, requests = 2, s_kv = 20 })
      assert.equal(20, p.s_kv)
      assert.same({ 10, 11 }, row(p, 3))
    end)
  end)

  describe("uniform", function()
    it("draws the head of a random permutation", function()
      local p = pattern.make("uniform", { s_q = 20, s_kv = 50, topk = 50 })
      assert.is_nil(p.topk_length)
      for i = 0, 19 do assert.same(range(0, 49), sorted(row(p, i))) end
      assert.is_not.same(row(p, 0), row(p, 1))
      assert.equal(1000, p.valid)
    end)

    it("fills lists wider than the KV with FlashMLA's invalid values", function()
      local p = pattern.make("uniform", { s_q = 50, s_kv = 30, topk = 90 })
      local seen, allowed = {}, set { -2147483648, -123456, -1, 30, 114514, 1919810, 2147480000, 2147483647 }
      for i = 0, 49 do
        assert.same(range(0, 29), sorted(row(p, i, 1, 30)))
        for _, v in ipairs(row(p, i, 31)) do
          assert.is_true(allowed[v])
          seen[v] = true
        end
      end
      assert.same(allowed, seen)
      assert.equal(1500, p.valid)
    end)

    it("calls no value invalid that s_kv makes valid", function()
      local p = pattern.make("uniform", { s_q = 100, s_kv = 200000, topk = 20, holes = 1 })
      assert.equal(0, p.valid)
      for i = 0, 99 do assert.equal(0, count(row(p, i), function(v) return v == 114514 end)) end
    end)

    it("draws with replacement when repeats are wanted", function()
      local p = pattern.make("uniform", { s_q = 10, s_kv = 4, topk = 400, repeats = true })
      assert.equal(4000, p.valid)
      for v = 0, 3 do
        local n = count(row(p, 0), function(x) return x == v end)
        assert.is_true(n > 60 and n < 140)
      end
    end)

    it("draws with replacement from any number of rows", function()
      local p = pattern.make("uniform", { s_q = 1, s_kv = 2^31 - 1, topk = 1000, repeats = true })
      assert.equal(1000, p.valid)
      assert.equal(1000, count(row(p, 0), function(v) return v >= 0 and v < 2^31 - 1 end))
      assert.is_true(count(row(p, 0), function(v) return v > 2^30 end) > 400)
    end)

    it("draws from no rows at all", function()
      local p = pattern.make("uniform", { s_q = 2, s_kv = 0, topk = 3 })
      assert.equal(0, p.valid)
      p = pattern.make("uniform", { s_q = 2, s_kv = 0, topk = 3, repeats = true })
      assert.equal(0, p.valid)
    end)

    it("gives whole rows no valid key at the rate asked for", function()
      local p = pattern.make("uniform", { s_q = 20000, s_kv = 64, topk = 4, invalid_rows = 0.02 })
      local empty = 0
      for i = 0, 19999 do
        assert.is_true(p.keys[i] == 0 or p.keys[i] == 4)
        if p.keys[i] == 0 then empty = empty + 1 end
      end
      assert.is_true(math.abs(empty / 20000 - 0.02) < 0.004)
      assert.equal(4 * (20000 - empty), p.valid)
    end)
  end)

  describe("lengths", function()
    it("may be one number for every row", function()
      local p = pattern.make("uniform", { s_q = 3, s_kv = 1000, topk = 640, lengths = 512 })
      assert.same({ 512, 512, 512 }, lengths(p))
      assert.equal(3 * 512, p.valid)
      assert.equal(0, pattern.make("uniform", { s_q = 3, s_kv = 1000, topk = 640, lengths = 0 }).valid)
    end)

    it("may be drawn from 0 .. topk", function()
      local p = pattern.make("uniform", { s_q = 4000, s_kv = 10, topk = 3, lengths = "uniform" })
      local seen = { [0] = 0, 0, 0, 0 }
      for i = 0, 3999 do
        seen[p.topk_length[i]] = seen[p.topk_length[i]] + 1
        assert.equal(p.topk_length[i], p.keys[i])
      end
      for v = 0, 3 do assert.is_true(seen[v] > 850 and seen[v] < 1150) end
    end)

    it("may be left out, which leaves the -1 tail to say where a list ends", function()
      local p = pattern.make("csa", { s_q = 6, window = 2, index_topk = 3, ratio = 2, holes = 0, lengths = "none" })
      assert.is_nil(p.topk_length)
      assert.equal(20, p.valid)
    end)
  end)

  describe("file", function()
    local name
    before_each(function() name = os.tmpname() end)
    after_each(function()
      os.remove(name)
      os.remove(name .. ".json")
      os.remove(name .. ".len")
    end)
    local function write(suffix, bytes)
      local f = assert(io.open(name .. suffix, "wb"))
      f:write(bytes)
      f:close()
    end
    local LISTS = "\5\0\0\0\0\0\0\0" .. "\255\255\255\255\2\0\0\0" .. "\1\0\0\0\1\0\0\0" -- 5 0, -1 2, 1 1

    it("gives captured lists back as they are", function()
      write("", LISTS)
      write(".json", '{"dtype": "int32", "shape": [3, 2]}')
      local p = assert(pattern.make("file", { indices = name }))
      assert.same({ 3, 2, 6 }, { p.s_q, p.topk, p.s_kv })
      assert.same({ 5, 0 }, row(p, 0))
      assert.same({ -1, 2 }, row(p, 1))
      assert.same({ 1, 1 }, row(p, 2))
      assert.is_nil(p.topk_length)
      assert.equal(5, p.valid)
    end)

    it("takes s_kv and lengths from the header, or s_kv and fewer rows from the caller", function()
      write("", LISTS)
      write(".len", "\2\0\0\0\1\0\0\0\1\0\0\0")
      write(".json", ('{"dtype": "int32", "shape": [3, 1, 2], "s_kv": 100, "topk_length": "%s.len"}'):format(
        name:match("[^/]*$")))
      local p = assert(pattern.make("file", { indices = name }))
      assert.equal(100, p.s_kv)
      assert.same({ 2, 1, 1 }, lengths(p))
      assert.equal(3, p.valid)
      p = assert(pattern.make("file", { indices = name, s_q = 2, s_kv = 5, lengths = "none" }))
      assert.equal(2, p.s_q)
      assert.equal(2, p.valid)
    end)

    it("refuses files whose shapes are no lists, and sizes that the file does not have", function()
      write("", LISTS)
      write(".json", '{"dtype": "int32", "shape": [6]}')
      local p, err = pattern.make("file", { indices = name })
      assert.is_nil(p)
      assert.equal(name .. ": got shape {6}, wanted {s_q, topk} or {s_q, 1, topk}", err)
      write(".json", '{"dtype": "int32", "shape": [3, 2]}')
      refused("pattern file: s_q: got 4, wanted a whole number in 0 .. 3", "file", { indices = name, s_q = 4 })
      refused("pattern file: topk: got 3, wanted a whole number in 2 .. 2", "file", { indices = name, topk = 3 })
      write(".len", "\2\0\0\0\1\0\0\0")
      write(".json", ('{"dtype": "int32", "shape": [3, 2], "topk_length": "%s.len"}'):format(name:match("[^/]*$")))
      p, err = pattern.make("file", { indices = name })
      assert.is_nil(p)
      assert.equal(name .. ": topk_length: got shape {2}, wanted {3}", err)
    end)

    it("hands on what is wrong with the file", function()
      local p, err = pattern.make("file", { indices = name })
      assert.is_nil(p)
      assert.equal(("%s: wanted an .npy file, or %s.json beside it to say what it holds"):format(name, name), err)
    end)
  end)

  describe("seed", function()
    it("decides everything, the same on every machine", function()
      local a = pattern.make("csa", { s_q = 3, prior = 5000, seed = 7, topk = 132, window = 128 })
      local b = pattern.make("csa", { s_q = 3, prior = 5000, seed = 7, topk = 132, window = 128 })
      local c = pattern.make("csa", { s_q = 3, prior = 5000, seed = 8, topk = 132, window = 128 })
      for i = 0, 2 do
        assert.same(row(a, i), row(b, i))
        assert.is_not.same(row(a, i, 1, 4), row(c, i, 1, 4))
      end
      -- the head of Fisher and Yates on 0 .. 5000 with block 0 of Philox4x32-10 (key 7, stream 0), worked out apart
      assert.same({ 4773, 3751, 572, 431 }, row(a, 0, 1, 4))
    end)
  end)

  describe("the table", function()
    it("says which patterns there are and what they take", function()
      local here = {}
      for _, name in ipairs(pattern.names) do here[name] = true end
      for _, name in ipairs { "uniform", "window", "csa", "local", "blocks", "pools", "all", "dense_prefix", "file" } do
        assert.is_true(here[name], name)
      end
      for _, name in ipairs(pattern.drawn) do here[name] = nil end
      assert.same({ file = true }, here) -- of them, lists that are read are not drawn
      assert.same({ "window", "requests", "prior" }, pattern.reads("window"))
      local taking = {}
      for _, name in ipairs(pattern.taking("ratio")) do taking[name] = true end
      for name, wanted in pairs { csa = true, ["local"] = true, blocks = true, all = true, window = false, uniform = false } do
        assert.equal(wanted, taking[name] == true, name)
      end
      assert.same(pattern.names, pattern.taking("seed"))
      assert.is_true(pattern.takes("local", "keep"))
      assert.is_false(pattern.takes("csa", "keep"))
      assert.equal("indices", pattern.needs("file"))
      assert.is_nil(pattern.needs("csa"))
      assert.same({ "window", "index_topk", "ratio" }, pattern.of_preset("csa"))
    end)

    it("drops from options what a pattern does not take, and nothing else", function()
      local options = { s_q = 4, keep = 0.9, ratio = 2, layout = "vllm" }
      assert.same({ s_q = 4, layout = "vllm" }, pattern.fitting("uniform", options))
      assert.same({ s_q = 4, ratio = 2, layout = "vllm" }, pattern.fitting("csa", options))
      assert.same({ s_q = 4, keep = 0.9, ratio = 2, layout = "vllm" }, options)
    end)
  end)

  describe("sizes of nothing", function()
    it("are fine", function()
      for _, name in ipairs(pattern.drawn) do
        local p = pattern.make(name, { s_q = 0 })
        assert.equal(0, p.valid)
        assert.equal(0, p.s_q)
      end
      assert.equal(0, pattern.make("uniform", { s_q = 3, topk = 0 }).valid)
      assert.equal(0, pattern.make("csa", { s_q = 3, topk = 0, window = 0 }).valid)
      local p = pattern.make("window", { s_q = 3, topk = 0 })
      assert.same({ 0, 0 }, { p.s_kv, p.valid })
    end)
  end)

  describe("refuses", function()
    it("pools and widths that do not fit", function()
      refused("pattern pools: index_topk: got 6, wanted a multiple of block = 4", "pools", { s_q = 1, index_topk = 6 })
      refused("pattern pools: topk: got 2, wanted at least block - 1 = 3", "pools", { s_q = 1, topk = 2 })
      refused("pattern all: topk: got 64, wanted at least 130: 2 compressed rows and a window of 128", "all",
        { s_q = 1, topk = 64, prior = 255 })
    end)

    it("unknown names and options, naming the near ones", function()
      refused('pattern: got "cas", wanted one of '
        .. table.concat(pattern.names, ', ') .. '; did you mean "csa"?', "cas",
        { s_q = 1 })
      refused('pattern csa: unknown option "ratios"; did you mean "ratio"? known: ' .. table.concat(pattern.options, ", "), "csa",
        { s_q = 1, ratios = 2 })
    end)

    it("options that the pattern does not take, naming those that do", function()
      refused('pattern uniform: keep: has no effect with pattern "uniform"; patterns that take it: local, blocks, pools',
        "uniform",
        { s_q = 1, keep = 0.9 })
      refused('pattern window: holes: has no effect with pattern "window"; patterns that take it: uniform, csa, local, blocks',
        "window",
        { s_q = 1, holes = 0 })
      refused('pattern csa: indices: has no effect with pattern "csa"; patterns that take it: file', "csa",
        { s_q = 1, indices = "x.npy" })
    end)

    it("sizes that are none", function()
      refused("pattern csa: s_q: got nil, wanted a whole number in 0 .. 2147483647", "csa", {})
      refused("pattern csa: s_q: got 1.5, wanted a whole number in 0 .. 2147483647", "csa", { s_q = 1.5 })
      refused("pattern csa: prior: got -1, wanted a whole number in 0 .. 2147483647", "csa", { s_q = 1, prior = -1 })
      refused("pattern csa: ratio: got 0, wanted a whole number in 1 .. 2147483647", "csa", { s_q = 1, ratio = 0 })
      refused("pattern csa: holes: got 2, wanted a finite number in 0 .. 1", "csa", { s_q = 1, holes = 2 })
      refused("pattern local: keep: got NaN, wanted a finite number in 0 .. 1", "local", { s_q = 1, keep = 0 / 0 })
      refused("pattern uniform: repeats: got 1, wanted true or false", "uniform", { s_q = 1, repeats = 1 })
      refused("pattern uniform: seed: got -1, wanted a whole number >= 0", "uniform", { s_q = 1, seed = -1 })
      refused("pattern file: indices: got nil, wanted a string", "file", {})
    end)

    it("sizes that do not fit each other", function()
      refused("pattern csa: topk: got 64, wanted at least the window, 128", "csa", { s_q = 1, topk = 64 })
      refused("pattern csa: index_topk: got 513, wanted a whole number in 0 .. 512", "csa",
        { s_q = 1, topk = 640, index_topk = 513 })
      refused("pattern csa: s_kv: got 100, wanted 2 * M with M >= 96: requests * (32 compressed + 64 token rows)", "csa",
        { s_q = 128, requests = 2, ratio = 2, s_kv = 100 })
      refused("pattern csa: requests: got {1, 2}, wanted row counts that add up to s_q = 4", "csa",
        { s_q = 4, requests = { 1, 2 } })
      refused("pattern csa: prior: got {1}, wanted one number or a list of 2, one a request", "csa",
        { s_q = 4, requests = 2, prior = { 1 } })
      refused("pattern window: window: got 200, wanted a whole number in 0 .. 128", "window",
        { s_q = 4, topk = 128, window = 200 })
      refused("pattern csa: prior: got 2000000000, 1000000000 compressed rows at ratio 2, wanted at most 268435456", "csa",
        { s_q = 1, prior = 2e9, ratio = 2 })
      refused("pattern uniform: s_kv: got 300000000, wanted a whole number in 0 .. 268435456", "uniform", { s_q = 1, s_kv = 3e8 })
      refused("pattern csa: s_q * topk: got 1000000 * 640, wanted at most 268435456 entries", "csa", { s_q = 1000000 })
    end)

    it("lengths that are none", function()
      refused('pattern csa: lengths: got "all", wanted natural, none, uniform or a whole number >= 0', "csa",
        { s_q = 1, lengths = "all" })
      refused("pattern csa: lengths: got 641, wanted a whole number in 0 .. 640", "csa", { s_q = 1, lengths = 641 })
    end)
  end)
end)
