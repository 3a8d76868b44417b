local npy = require "fewhead.base.npy"

-- Files as NumPy 1.24 wrote them byte for byte, or with one thing wrong.
local function header(text, version)
  local size = #text
  if version == 2 then
    return "\147NUMPY\2\0" .. string.char(size % 256, math.floor(size / 256), 0, 0) .. text
  end
  return "\147NUMPY\1\0" .. string.char(size % 256, math.floor(size / 256)) .. text
end
local DICT = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }"
local PADDED = DICT .. (" "):rep(128 - 10 - #DICT - 1) .. "\n"
local DATA = "\1\0\0\0\255\255\255\255\0\0\0\128\255\255\255\127\0\1\0\0\0\0\1\0"
local VALUES = { 1, -1, -2147483648, 2147483647, 256, 65536 }

describe("npy", function()
  local folder, written = nil, {}
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
  end)
  local function path(name) return folder .. "." .. name end
  local function file(name, bytes)
    local f = assert(io.open(path(name), "wb"))
    f:write(bytes)
    f:close()
    written[#written + 1] = path(name)
    return path(name)
  end
  after_each(function()
    for _, name in ipairs(written) do os.remove(name) end
    written = {}
  end)
  local function values(lists)
    local list = {}
    for i = 0, #VALUES - 1 do list[i + 1] = lists.data[i] end
    return list
  end
  local function refused(reason, name, bytes)
    local at = file(name, bytes)
    local lists, err = npy.read(at)
    assert.is_nil(lists)
    assert.equal(at .. ": " .. reason, err)
  end

  it("reads int32 of format 1.0 and 2.0", function()
    for version = 1, 2 do
      local lists = assert(npy.read(file("a.npy", header(PADDED, version) .. DATA)))
      assert.same({ 2, 3 }, lists.shape)
      assert.same(VALUES, values(lists))
    end
  end)

  it("reads other shapes and either kind of quote", function()
    local dict = '{"descr": "<i4", "fortran_order": False, "shape": (6,)}\n'
    assert.same({ 6 }, assert(npy.read(file("v.npy", header(dict) .. DATA))).shape)
    dict = "{'shape': (2, 1, 3), 'fortran_order': False, 'descr': '<i4'}\n"
    assert.same({ 2, 1, 3 }, assert(npy.read(file("v.npy", header(dict) .. DATA))).shape)
  end)

  it("refuses what is cut off or too long, with the bytes", function()
    refused("truncated: got 23 bytes of data, wanted 24 for shape {2, 3}", "a.npy", header(PADDED) .. DATA:sub(1, 23))
    refused("too long: got 25 bytes of data, wanted 24 for shape {2, 3}", "a.npy", header(PADDED) .. DATA .. "\0")
    refused("truncated: got 100 bytes, wanted a header of 128", "a.npy", header(PADDED):sub(1, 100))
    refused("truncated: got 8 bytes, wanted a header", "a.npy", header(PADDED):sub(1, 8))
    refused("not an .npy file: it does not start with \\x93NUMPY", "a.npy", "")
    refused("not an .npy file: it does not start with \\x93NUMPY", "a.npy", "PK\3\4" .. PADDED)
  end)

  it("refuses another dtype, Fortran order and another version", function()
    local function with(from, to) return header((PADDED:gsub(from, to))) .. DATA end
    refused("dtype: got '<i8', wanted '<i4' (int32, little-endian)", "a.npy", with("<i4", "<i8"))
    refused("dtype: got '>i4', wanted '<i4' (int32, little-endian)", "a.npy", with("<i4", ">i4"))
    refused("dtype: got none, wanted '<i4' (int32, little-endian)", "a.npy", with("descr", "thing"))
    refused("fortran_order: got True, wanted False (C order)", "a.npy", with("False", "True"))
    refused("fortran_order: got none, wanted False (C order)", "a.npy", with("fortran_order", "order"))
    refused("format version: got 3.0, wanted 1.0 or 2.0", "a.npy", "\147NUMPY\3\0" .. header(PADDED, 2):sub(9) .. DATA)
  end)

  it("refuses sizes that are not whole and positive", function()
    local function shape(text) return header((PADDED:gsub("%(2, 3%)", text))) .. DATA end
    refused("shape: size 1 is 0, wanted a whole number >= 1", "a.npy", shape("(0, 3)"))
    refused("shape: size 2 is -3, wanted a whole number >= 1", "a.npy", shape("(2, -3)"))
    refused("shape: size 2 is x, wanted a whole number >= 1", "a.npy", shape("(2, x)"))
    refused("shape: got no size, wanted 1 or more", "a.npy", shape("()"))
    refused("header: no shape in it", "a.npy", shape("None"))
  end)

  it("refuses a header that claims to be huge before it reads it", function()
    refused("header: got 4294967295 bytes, wanted at most 65536", "a.npy", "\147NUMPY\2\0\255\255\255\255")
  end)

  it("says which file is missing", function()
    local lists, err = npy.read(path("none.npy"))
    assert.is_nil(lists)
    assert.equal(path("none.npy") .. ": No such file or directory", err)
    lists, err = npy.read("/")
    assert.is_nil(lists)
    assert.equal("/: Is a directory", err)
  end)

  describe("load", function()
    local function load_refused(reason, name)
      local lists, err = npy.load(name)
      assert.is_nil(lists)
      assert.equal(reason, err)
    end

    it("takes an .npy file alone", function()
      local lists = assert(npy.load(file("a.npy", header(PADDED) .. DATA)))
      assert.same(VALUES, values(lists))
      assert.is_nil(lists.s_kv)
      assert.is_nil(lists.topk_length)
    end)

    it("takes raw int32 that a header beside it describes", function()
      local name = file("picks.bin", DATA)
      file("picks.bin.json", '{"dtype": "int32", "shape": [2, 3], "s_kv": 70000}')
      local lists = assert(npy.load(name))
      assert.same({ 2, 3 }, lists.shape)
      assert.same(VALUES, values(lists))
      assert.equal(70000, lists.s_kv)
    end)

    it("takes lengths from a file beside it, raw or .npy", function()
      local name = file("a.npy", header(PADDED) .. DATA)
      file("len.i32", "\3\0\0\0\2\0\0\0")
      file("len.npy", header((PADDED:gsub("%(2, 3%)", "(2,)"))) .. "\3\0\0\0\2\0\0\0")
      for _, length in ipairs { "len.i32", "len.npy" } do
        file("a.npy.json", ('{"s_kv": 9, "topk_length": "%s"}'):format(path(length):match("[^/]*$")))
        local lists = assert(npy.load(name))
        assert.equal(9, lists.s_kv)
        assert.same({ 2 }, lists.topk_length.shape)
        assert.same({ 3, 2 }, { lists.topk_length.data[0], lists.topk_length.data[1] })
      end
    end)

    it("takes where requests begin from the header", function()
      local name = file("a.npy", header(PADDED) .. DATA)
      local function with(offsets, reason)
        file("a.npy.json", ('{"cu_seqlens_q": %s}'):format(offsets))
        if reason then return load_refused(("%s.json: cu_seqlens_q: %s"):format(name, reason), name) end
        return assert(npy.load(name)).cu_seqlens_q
      end
      assert.same({ 0, 1, 1, 2 }, with "[0, 1, 1, 2]")
      with("[0, 1]", "got 1 last, wanted the 2 rows of the lists")
      with("[1, 2]", "offset 1: got 1, wanted 0")
      with("[0, 2, 1]", "offset 3: got 1, wanted a whole number >= 2")
      with("[0, 0.5, 2]", "offset 2: got 0.5, wanted a whole number >= 0")
      with("[2]", "wanted a list of at least 2 offsets: 0 and s_q")
      with('"offsets.npy"', "wanted a list of at least 2 offsets: 0 and s_q")
    end)

    it("refuses raw data without a header", function()
      local name = file("picks.bin", DATA)
      load_refused(("%s: wanted an .npy file, or %s.json beside it to say what it holds"):format(name, name), name)
    end)

    it("refuses a bad header with its name and the reason", function()
      local name = file("picks.bin", DATA)
      local function with(text, reason)
        file("picks.bin.json", text)
        load_refused(name .. ".json: " .. reason, name)
      end
      with('{"dtype": "int64", "shape": [2, 3]}', 'dtype: got int64, wanted "int32"')
      with('{"dtype": "int32"}', "shape: got nil, wanted a list of sizes")
      with('{"dtype": "int32", "shape": [2, 3], "s_kv": 0}', "s_kv: got 0, wanted a whole number in 1 .. 2147483647")
      with('{"dtype": "int32", "shape": [2, 3], "topk_length": 3}', "topk_length: got 3, wanted the name of a file beside it")
      with('{"dtype": "int32", "shape": [2, 3], "order": "C"}',
        'unknown key "order"; known: dtype, shape, s_kv, topk_length, cu_seqlens_q')
    end)

    it("refuses sizes and bytes that do not fit the raw data", function()
      local name = file("picks.bin", DATA)
      file("picks.bin.json", '{"dtype": "int32", "shape": [2, 4]}')
      load_refused(name .. ": truncated: got 24 bytes of data, wanted 32 for shape {2, 4}", name)
      file("picks.bin.json", '{"dtype": "int32", "shape": [2, 0]}')
      load_refused(name .. ": shape: size 2 is 0, wanted a whole number >= 1", name)
    end)

    it("refuses a header that repeats what the .npy file says", function()
      local name = file("a.npy", header(PADDED) .. DATA)
      file("a.npy.json", '{"shape": [2, 3]}')
      load_refused(name .. ".json: dtype and shape stand in the .npy file, wanted neither here", name)
    end)
  end)
end)
