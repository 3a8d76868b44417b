-- Runs what the documents show: every block of shell, Lua and C in README.md and docs/ is taken from the file as it stands. A Lua
-- block that starts with a comment with a file's name is written to that file. One that starts with "in FILE" is put into that
-- file of a copy of the modules, with which all commands run.
local ffi = require "ffi"
local helper = require "spec.helper"
local plugin = require "spec.plugin"
local process = require "spec.process"

-- ---- Blocks -----------------------------------------------------------------------------------------------------------------

-- The fenced blocks of a document: { document =, line =, language =, text = }.
local function blocks_of(document)
  local blocks, block, number = {}, nil, 0
  for line in io.lines(process.root .. "/" .. document) do
    number = number + 1
    local language = line:match("^```(.*)$")
    if block and language then
      block.text = table.concat(block, "\n") .. "\n"
      blocks[#blocks + 1], block = block, nil
    elseif language then block = { document = document, line = number + 1, language = language }
    elseif block then block[#block + 1] = line end
  end
  assert(not block, document .. ": a block is not closed")
  return blocks
end

local blocks = {}
for document in helper.shell(("cd %s && ls README.md docs/*.md"):format(helper.quoted(process.root))):gmatch("%S+") do
  for _, block in ipairs(blocks_of(document)) do blocks[#blocks + 1] = block end
end

local function each(language, use)
  for _, block in ipairs(blocks) do
    if block.language == language then use(block, ("%s:%d"):format(block.document, block.line)) end
  end
end

-- ---- Commands ---------------------------------------------------------------------------------------------------------------

-- Options that make a command quick. A command that matches the pattern gets them at its end.
local QUICK = {
  { "^%./fewhead parity", " --filter own/outputs" },
  { "run experiments/layers%.lua", " --s-q 2 --prior 32 --seconds 0" },
  { "run experiments/peers%.lua", " --s-q 4 --published 4 --seconds 0 --samples 6" },
}

-- A command as this machine can run it in seconds: on the CPU, with quick options; make only says what it would do.
local function quick(command)
  command = command:gsub("%s+#.*$", ""):gsub("cuda:0", "cpu"):gsub(" %-%-prior %d+", "")
  if command:find("^make%f[%s%z]") then return "cd CHECKOUT && make -n" .. command:sub(5) .. " >/dev/null" end
  for _, change in ipairs(QUICK) do
    if command:find(change[1]) then command = command .. change[2] end
  end
  return command
end

-- An int32 array as numpy.save writes it; value(i) is element i, from 0.
local function npy(shape, value)
  local header = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%s,), }\n"):format(table.concat(shape, ", "))
  local count = 1
  for _, n in ipairs(shape) do count = count * n end
  local data = ffi.new("int32_t[?]", count)
  for i = 0, count - 1 do data[i] = value(i) end
  return "\147NUMPY\1\0" .. string.char(#header, 0) .. header .. ffi.string(data, count * 4)
end

-- The file of the checkout that a block is to be put into, nil for others.
local function target_of(block) return block.text:match("^%-%- in (lua/%S+%.lua)\n") end

-- The file that a block is to be written to, nil for others.
local function name_of(block) return block.text:match("^%-%- ([%w_]+%.lua)") end

-- Put a block above the last line of a file.
local function put(folder, block)
  local path = folder .. target_of(block)
  local before, after = helper.read(path):match("^(.*\n)(return M\n)$")
  assert(before, path .. ": no place for a block")
  helper.write(path, before .. block.text .. "\n" .. after)
end

-- A folder in which the documents' commands find what they name.
local function workplace()
  local folder = helper.folder()
  local root = helper.quoted(process.root)
  local _, status = helper.shell(("cd %s && cp -R %s/fewhead %s/lua . && ln -s %s/lib %s/build %s/experiments %s/spec "
    .. "%s/.busted . && mkdir pc results results/local && ln -s %s/results/nvidia-h200 results"):format(folder, root, root, root,
    root, root, root, root, root))
  assert(status == 0)
  each("lua", function(block)
    local name = name_of(block)
    if target_of(block) then put(folder, block)
    elseif name then helper.write(folder .. name, block.text) end
  end)
  helper.write(folder .. "mine.c", plugin.source())
  each("c", function(block) helper.write(folder .. "program.c", block.text) end)
  local pc = helper.read(process.root .. "/fewhead.pc.in"):gsub("@(%u+)@",
    { PREFIX = folder, LIBDIR = process.root .. "/build", INCLUDEDIR = process.root .. "/lib/include", VERSION = "0" })
  helper.write(folder .. "pc/fewhead.pc", pc)
  helper.write(folder .. "layer7.npy", npy({ 64, 16 }, function(i) return i % 40 end))
  helper.write(folder .. "length7.npy", npy({ 64 }, function(i) return i % 17 end))
  helper.write(folder .. "conversation_trace.jsonl",
    '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}\n')
  return folder
end

describe("The documents", function()
  local folder
  lazy_setup(function()
    folder = workplace()
    local command = "./fewhead run experiments/gate_sweep.lua --s-q 16,32 --seconds 0"
    local status, out, err = process.run(command, { cwd = folder, env = { FEWHEAD_DEVICE = "cpu" } })
    assert(status == 0, out .. err)
  end)
  lazy_teardown(function() process.remove(folder) end)

  local env = { FEWHEAD_DEVICE = "cpu", FEWHEAD_FLASHMLA = false, VIRTUAL_ENV = false, CONDA_PREFIX = false }

  it("hold no block of a language that no spec knows", function()
    local known = { sh = true, lua = true, c = true, cpp = true, python = true, [""] = true } -- cpp, python: engines/python/tests
    for _, block in ipairs(blocks) do
      assert.is_true(known[block.language], ("%s:%d: %s"):format(block.document, block.line, block.language))
    end
  end)

  local shown = {} -- commands that stand in two documents run once
  each("sh", function(block, where)
    local number = block.line
    for line in block.text:gmatch("([^\n]*)\n") do
      if line:find("%S") and not shown[quick(line)] then
        shown[quick(line)] = true
        it(("show a command that works: %s:%d: %s"):format(block.document, number, line:gsub("%s+#.*$", "")), function()
          local command = quick(line):gsub("CHECKOUT", helper.quoted(process.root))
          env.PKG_CONFIG_PATH = folder .. "pc"
          local status, out, err = process.run(command, { cwd = folder, env = env })
          assert.equal(0, status, ("%s: %s\n%s%s"):format(where, command, out, err))
        end)
      end
      number = number + 1
    end
  end)

  each("lua", function(block, where)
    if target_of(block) then return end -- commands run it
    if name_of(block) then
      it("use the file of a block: " .. where, function()
        local used, file, module = false, name_of(block), ('require "%s"'):format(name_of(block):gsub("%.lua$", ""))
        for _, other in ipairs(blocks) do
          local command = other.language == "sh" and other.text:find(file, 1, true)
          used = used or other.document == block.document and (command or other.text:find(module, 1, true)) and true
        end
        assert.is_true(used, file)
      end)
      return
    end
    it("show Lua that runs: " .. where, function()
      helper.write(folder .. "script.lua", block.text)
      local status, out, err = process.run("./fewhead run script.lua", { cwd = folder, env = env })
      assert.equal(0, status, where .. "\n" .. out .. err)
    end)
  end)

  each("c", function(block, where)
    it("show C that compiles without a warning and prints what its last comment says: " .. where, function()
      helper.write(folder .. "shown.c", block.text)
      local status, out, err = process.run("cc -std=c11 -Wall -Wextra -Werror -o shown shown.c -Ilib/include -Lbuild -lfewhead "
        .. "&& LD_LIBRARY_PATH=build ./shown", { cwd = folder })
      assert.equal(0, status, where .. "\n" .. out .. err)
      assert.equal("out[0] = 0x3f80\n", out)
      assert.is_truthy(block.text:find('"out%[0%] = 0x%%04x\\n", out%[0%]%); /%* 0x3f80 %*/'))
    end)
  end)

  it("and the header's first program: it compiles without a warning and computes", function()
    local header = helper.read(process.root .. "/lib/include/fewhead.h")
    local use = header:match("\n %*\n( %*     fh_device %*cpu.-)\n %*\n"):gsub("\n %*", "\n"):gsub("^ %*", "")
    helper.write(folder .. "use.c", ([[
      #include <fewhead.h>
      #include <stdio.h>
      #include <stdlib.h>
      enum { s_q = 4, s_kv = 256, h_q = 8, topk = 128 };
      static uint16_t q[s_q * h_q * 512], kv[s_kv * 512], out[s_q * h_q * 512];
      static int32_t indices[s_q * topk]; /* every key is row 0 of kv */
      int main(void) {
        for (int i = 0; i < s_kv * 512; i++) kv[i] = 0x3f80; /* 1.0 */
        %s
        for (int i = 0; i < s_q * h_q * 512; i++)
          if (out[i] != 0x3f80) return 2;
        return 0;
      }]]):format(use))
    local status, printed, err = process.run("cc -std=c11 -Wall -Wextra -Werror -o use use.c -Ilib/include -Lbuild -lfewhead "
      .. "&& LD_LIBRARY_PATH=build ./use", { cwd = folder })
    assert.same({ 0, "", "" }, { status, printed, err })
  end)

  it("mark the commands that need a GPU in the guide", function()
    local count = 0
    each("sh", function(block)
      for line in block.document == "docs/guide.md" and block.text:gmatch("[^\n]+") or function() end do
        if line:find("cuda", 1, true) then
          count = count + 1
          assert.is_truthy(line:find("# needs a GPU", 1, true), line)
        end
      end
    end)
    assert.is_true(count > 0)
  end)

  it("name modules of the facade alone", function()
    local fh = require "fewhead"
    for _, document in ipairs { "README.md", "docs/api.md", "docs/guide.md" } do
      for name in helper.read(process.root .. "/" .. document):gmatch("`fh%.([%w_]+)`") do
        assert.is_truthy(fh._room[name], document .. ": fh." .. name)
      end
    end
  end)

  it("link from README to every page", function()
    local readme = helper.read(process.root .. "/README.md")
    for page in helper.shell(("cd %s && ls docs/*.md"):format(helper.quoted(process.root))):gmatch("%S+") do
      assert.is_truthy(readme:find(page, 1, true), page)
    end
  end)

  it("fit: README has fewer than 220 lines", function()
    local _, lines = helper.read(process.root .. "/README.md"):gsub("\n", "")
    assert.is_true(lines < 220, lines .. " lines")
  end)
end)
