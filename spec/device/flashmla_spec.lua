-- FlashMLA and FlashAttention 3: where they are found, and the plug-in that runs them. What PyTorch and the two are to the
-- plug-in is compiled here from spec/c: their interfaces, and the two's arithmetic and demands, on host memory.
local device = require "fewhead.device.device"
local helper = require "spec.helper"
local parity = require "fewhead.measure.parity"
local process = require "spec.process"
local F = require "fewhead.base.ffi"
local case = require "fewhead.case.case"

local ffi, C = F.ffi, F.C
local plugin = F.path:match("^.*/") .. "libfewhead_flashmla.so"

local DECLARATIONS = helper.read(helper.root .. "lib/include/fewhead_provider.h"):match(
  "/%* cdef:begin %*/\n(.-)/%* cdef:end %*/")
if not pcall(ffi.typeof, "fh_provider_table") then ffi.cdef(DECLARATIONS) end
if not pcall(ffi.typeof, "struct flashmla_stub") then
  ffi.cdef [[
  struct flashmla_stub { int mark; };
  int stub_alive(void);
  const void *seen_q, *seen_kv, *seen_indices, *seen_topk_length, *seen_stream;
  int64_t seen_heads, seen_width;
  const void *seen_q_v, *seen_v, *seen_table;
  int64_t seen_rope;
  int calls;
  const char *raise_next;
  void register_operator(void);
  int dup(int fd);
  int dup2(int fd, int as);
  int close(int fd);
  ]]
end

local INFERRED = { [0] = "(q, kv, indices, sm_scale, d_v)", [2] = "(q, kv, indices, sm_scale, d_v, attn_sink, topk_length)",
  [3] = "(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out)" }

describe("FlashMLA", function()
  local folder
  setup(function() folder = helper.folder() end)
  teardown(function() process.remove(folder) end)

  local function compile(source, output, flags)
    local text, status = helper.shell(("mkdir -p %s && ${CC:-cc} -std=c11 -O1 -shared -fPIC -o %s %s %s"):format(
      helper.quoted(output:match("^.*/")), helper.quoted(output), helper.quoted(helper.root .. "spec/c/" .. source), flags or ""))
    assert(status == 0, text)
    return output
  end

  local torch -- the folder of a libtorch that works
  local function torch_folder()
    if not torch then
      torch = folder .. "site/torch/lib"
      compile("torch_stub.c", torch .. "/libtorch_cuda.so", "-Wl,-soname,libtorch_cuda.so")
      helper.shell(("cp %s/libtorch_cuda.so %s/libtorch.so && cp %s/libtorch_cuda.so %s/libtorch_cpu.so"):format(torch, torch,
        torch, torch))
    end
    return torch
  end

  -- What f returns, and what it wrote to standard error.
  local function with_stderr(f)
    local kept, file = ffi.C.dup(2), assert(io.open(folder .. "stderr", "wb"))
    ffi.C.dup2(ffi.C.fileno(file), 2)
    local ok, result = pcall(f)
    ffi.C.dup2(kept, 2)
    ffi.C.close(kept)
    file:close()
    assert(ok, result)
    return result, helper.read(folder .. "stderr")
  end

  -- A package's library in a folder of this name, and a copy of the plug-in for it alone: a process gives each of its plug-ins
  -- one build of a package.
  local made, libraries, copies = {}, {}, {}
  local function extension(name, flags, source, file)
    if not made[name] then
      made[name] = compile(source or "flashmla_stub.c", ("%s%s/vllm/%s"):format(folder, name, file or "_flashmla_C.abi3.so"),
        ("%s -L%s -Wl,--no-as-needed -l:libtorch_cuda.so -lm"):format(flags, torch_folder()))
      local copy = folder .. name .. "/plugin.so"
      helper.shell(("cp %s %s"):format(helper.quoted(plugin), helper.quoted(copy)))
      libraries[made[name]], copies[made[name]] = ffi.load(copy), copy
    end
    return made[name]
  end

  -- The table of the plug-in for it.
  local function plugin_for(path) return libraries[path].fewhead_provider end

  describe("is found", function()
    -- A process whose environment has these settings and no others of ours.
    local function find(env, code)
      local settings = { VIRTUAL_ENV = false, CONDA_PREFIX = false, FEWHEAD_FLASHMLA = false, FEWHEAD_FA3 = false }
      for name, value in pairs(env) do settings[name] = value end
      local status, out, err = process.run({ "luajit", "-e", ("package.path = %q .. package.path\n"):format(
        process.root .. "/lua/?.lua;") .. (code or [[
        local found, reason = require("fewhead.device.flashmla").find()
        print(found and table.concat({ found.package, found.extension, found.torch, found.torch_version }, "|") or reason)
        ]]) }, { env = settings })
      assert.equal("", err)
      assert.equal(0, status)
      return (out:gsub("\n$", ""))
    end

    -- A site-packages folder with these files, empty or with a text.
    local function site(name, files)
      for file, text in pairs(files) do
        local path = folder .. name .. "/" .. file
        helper.shell("mkdir -p " .. helper.quoted(path:match("^.*/")))
        helper.write(path, text)
      end
      return folder .. name
    end

    -- A Python that says that these packages lie there, and its folder for PATH.
    local function python(name, where)
      local lines = { "#!/bin/sh" }
      for _, package in ipairs { "torch", "vllm", "sgl_kernel", "flash_mla" } do
        if where[package] then lines[#lines + 1] = ("printf '%%s\\t%%s\\n' %s '%s'"):format(package, where[package]) end
      end
      site(name .. "/bin", { python3 = table.concat(lines, "\n") .. "\n" })
      helper.shell("chmod +x " .. helper.quoted(folder .. name .. "/bin/python3"))
      return folder .. name
    end

    local PATH = os.getenv("PATH")
    local TORCH = { ["torch/lib/libtorch_cpu.so"] = "", ["torch/version.py"] = "__version__ = '2.11.0+cu130'\n" }
    local function with_torch(files)
      for file, text in pairs(TORCH) do files[file] = text end
      return files
    end

    it("in the Python environment that is active, vLLM's before sglang's", function()
      local there = site("both", with_torch { ["vllm/_flashmla_C.abi3.so"] = "", ["vllm-0.24.0.dist-info/METADATA"] = "",
        ["sgl_kernel/flashmla_ops.abi3.so"] = "", ["sglang_kernel-0.4.4.dist-info/METADATA"] = "" })
      local env = python("venv", { torch = there .. "/torch", vllm = there .. "/vllm", sgl_kernel = there .. "/sgl_kernel" })
      local want = ("vllm 0.24.0|%s/vllm/_flashmla_C.abi3.so|%s/torch/lib|2.11.0+cu130"):format(there, there)
      assert.equal(want, find { VIRTUAL_ENV = env })
      assert.equal(want, find { CONDA_PREFIX = env })
      assert.equal(want, find { PATH = env .. "/bin:" .. PATH })
      local sglang = python("sglang", { torch = there .. "/torch", sgl_kernel = there .. "/sgl_kernel" })
      assert.equal(("sglang-kernel 0.4.4|%s/sgl_kernel/flashmla_ops.abi3.so|%s/torch/lib|2.11.0+cu130"):format(there, there),
        find { VIRTUAL_ENV = sglang, CONDA_PREFIX = env })
    end)

    it("where FEWHEAD_FLASHMLA says: a library, a package's folder, the folder above it", function()
      local there = site("named", with_torch { ["vllm/_flashmla_C.abi3.so"] = "", ["vllm-0.24.0.dist-info/METADATA"] = "" })
      local want = ("vllm 0.24.0|%s/vllm/_flashmla_C.abi3.so|%s/torch/lib|2.11.0+cu130"):format(there, there)
      for _, path in ipairs { there, there .. "/", there .. "/vllm", there .. "/vllm/_flashmla_C.abi3.so" } do
        assert.equal(want, find { FEWHEAD_FLASHMLA = path, VIRTUAL_ENV = "/nowhere" })
      end
    end)

    it("with the PyTorch of the active environment where none lies beside it", function()
      local there = site("alone", { ["vllm/_flashmla_C.abi3.so"] = "" })
      local other = site("other", with_torch {})
      local env = python("other-env", { torch = other .. "/torch" })
      assert.equal(("vllm|%s/vllm/_flashmla_C.abi3.so|%s/torch/lib|2.11.0+cu130"):format(there, other),
        find { FEWHEAD_FLASHMLA = there, VIRTUAL_ENV = env })
      local empty = python("empty", {})
      assert.equal(("no FlashMLA: %s/vllm/_flashmla_C.abi3.so is there, and no PyTorch beside it or in the environment of " ..
        "%s/bin/python3; the built-in padded path stands in"):format(there, empty),
        find { FEWHEAD_FLASHMLA = there, VIRTUAL_ENV = empty })
    end)

    it("nowhere, and one line says what was looked for, where, and what helps", function()
      local empty = python("none", {})
      local remedy = "pip install vllm brings one, FEWHEAD_FLASHMLA=FILE names one; the built-in padded path stands in"
      assert.equal(("no FlashMLA: looked for vllm/_flashmla_C*.so, sgl_kernel/flashmla_ops*.so in the environment of " ..
        "%s/bin/python3; %s"):format(empty, remedy), find { VIRTUAL_ENV = empty })
      local there = site("python-only", { ["flash_mla/cuda.cpython-312.so"] = "",
        ["tokenspeed_flashmla-1.0.0.dist-info/METADATA"] = "" })
      local env = python("python-only-env", { flash_mla = there .. "/flash_mla" })
      assert.equal(("no FlashMLA: looked for vllm/_flashmla_C*.so, sgl_kernel/flashmla_ops*.so in the environment of " ..
        "%s/bin/python3; tokenspeed-flashmla 1.0.0 is there, but its functions are Python's and no operators of PyTorch; %s")
        :format(env, remedy), find { VIRTUAL_ENV = env })
      assert.equal("no FlashMLA: FEWHEAD_FLASHMLA, VIRTUAL_ENV and CONDA_PREFIX name none and there is no python3 on PATH; " ..
        remedy, find({}, [[
          local popen = io.popen
          io.popen = function(command) return popen("PATH=/nowhere; " .. command) end
          print(select(2, require("fewhead.device.flashmla").find()))]]))
      assert.equal('no FlashMLA: FEWHEAD_FLASHMLA: got "/nowhere", wanted a library or a folder with vllm/_flashmla_C*.so, ' ..
        "sgl_kernel/flashmla_ops*.so in it; the built-in padded path stands in", find { FEWHEAD_FLASHMLA = "/nowhere" })
    end)

    local FIND_FA3 = [[
      local found, reason = require("fewhead.device.flashmla").find { kernel = "fa3" }
      print(found and table.concat({ found.package, found.extension, found.torch, found.torch_version }, "|") or reason)]]

    it("as FlashAttention 3 in vLLM, or where FEWHEAD_FA3 says", function()
      local file = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
      local there = site("fa3", with_torch { [file] = "", ["vllm-0.33.0.dist-info/METADATA"] = "" })
      local want = ("vllm 0.33.0|%s/%s|%s/torch/lib|2.11.0+cu130"):format(there, file, there)
      local env = python("fa3-env", { torch = there .. "/torch", vllm = there .. "/vllm" })
      assert.equal(want, find({ VIRTUAL_ENV = env }, FIND_FA3))
      for _, path in ipairs { there, there .. "/vllm/", there .. "/vllm/vllm_flash_attn", there .. "/" .. file } do
        assert.equal(want, find({ FEWHEAD_FA3 = path, VIRTUAL_ENV = "/nowhere" }, FIND_FA3))
      end
      assert.matches("^no FlashMLA: looked for ", find { VIRTUAL_ENV = env })
      local empty = python("no-fa3", {})
      assert.equal(("no FlashAttention 3: looked for vllm/vllm_flash_attn/_vllm_fa3_C*.so in the environment of " ..
        "%s/bin/python3; pip install vllm brings one, FEWHEAD_FA3=FILE names one")
        :format(empty), find({ VIRTUAL_ENV = empty }, FIND_FA3))
      assert.equal('no FlashAttention 3: FEWHEAD_FA3: got "/nowhere", wanted a library or a folder with ' ..
        "vllm/vllm_flash_attn/_vllm_fa3_C*.so in it", find({ FEWHEAD_FA3 = "/nowhere" }, FIND_FA3))
    end)

    it("by wishes that are checked", function()
      local flashmla = require "fewhead.device.flashmla"
      assert.equal("flashmla.find: heads: got 32, wanted one of 64, 128",
        helper.refusal(function() flashmla.find { heads = 32 } end))
      assert.equal('flashmla.find: unknown option "head"; did you mean "heads"? known: kernel, heads, padding',
        helper.refusal(function() flashmla.find { head = 64 } end))
      assert.equal('flashmla.find: kernel: got "fa2", wanted one of fa3, flashmla; did you mean "fa3"?',
        helper.refusal(function() flashmla.find { kernel = "fa2" } end))
    end)
  end)

  describe("plug-in", function()
    local text = ffi.new("char[?]", C.FH_PROVIDER_TEXT)
    local function said() return ffi.string(text) end

    local function options(path, more)
      return ("extension=%s\ntorch=%s\npackage=stub 1.0%s"):format(path, torch_folder(), more and "\n" .. more or "")
    end

    -- The state of the plug-in for `path`, or nil and the reason. given: other options than those for it.
    local function open(path, more, given)
      local state = ffi.new("void *[1]")
      ffi.fill(text, C.FH_PROVIDER_TEXT)
      local status = plugin_for(path).open(given or options(path, more), state, text)
      if status ~= C.FH_OK then return nil, said() end
      return state[0]
    end

    local info = ffi.new("fh_device_info", { kind = C.FH_DEVICE_CUDA, capability = 90 })

    it("says which operator it found, with its arguments", function()
      for optional = 0, 3 do
        if INFERRED[optional] then
          assert.truthy(open(extension("inferred" .. optional, "-DOPTIONAL=" .. optional)))
          assert.equal(("stub 1.0, PyTorch 2.11.0; _flashmla_C::sparse_prefill_fwd%s; heads padded to 64 or 128, lists to a " ..
            "multiple of 128, not timed"):format(INFERRED[optional]), said())
        end
      end
      local few = extension("few", "-DOPTIONAL=3 -DFEW_HEADS")
      assert.truthy(open(few))
      assert.matches("heads padded to 8, 16, 32, 64 or 128, lists", said(), 1, true)
      assert.truthy(open(few, "heads=64\npadding=timed"))
      assert.matches("heads padded to 64 or 128, lists to a multiple of 128, timed", said(), 1, true)
    end)

    it("reads a schema that is written out, and refuses one that it does not know", function()
      local function written(name, schema)
        return open(extension(name, ("-DOPTIONAL=3 '-DSCHEMA=\"%s\"'"):format(schema)))
      end
      assert.truthy(written("written", "(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, " ..
        "Tensor? attn_sink=None, Tensor? topk_length=None, Tensor(a!)? out_=None) -> Tensor[]"))
      assert.matches(INFERRED[3], said(), 1, true)
      local other = "(Tensor q, Tensor kv, Tensor indices, int d_v, float sm_scale) -> Tensor[]"
      local state, reason = written("other", other)
      assert.is_nil(state)
      assert.equal(("%sother/vllm/_flashmla_C.abi3.so: its schema is not known here: sparse_prefill_fwd%s"):format(folder, other),
        reason)
      assert.is_nil(written("tuple", "(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v) -> (Tensor, Tensor)"))
      assert.is_nil(written("more", "(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, Tensor? attn_sink, " ..
        "Tensor? topk_length, Tensor? out, bool fast) -> Tensor[]"))
    end)

    it("refuses what is no FlashMLA, or was built for another PyTorch, in one line", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      local function refused(given)
        local state, reason = open(path, nil, given)
        assert.is_nil(state)
        assert.is_nil(reason:find("\n"))
        return reason
      end
      assert.equal("options: extension= is missing: wanted the package's library and PyTorch's folder", refused("torch=/x"))
      assert.equal('options: got the key "fast", wanted extension=, torch=, package=, heads= or padding=', refused("fast=1"))
      assert.equal('options: heads: got "9", wanted 64 or 128', refused(options(path, "heads=9")))
      assert.equal("extension: got /nowhere.so, wanted a shared library (No such file or directory)",
        refused("extension=/nowhere.so\ntorch=/x"))
      assert.equal(F.path .. " registers no sparse_prefill_fwd or fwd with PyTorch, as vLLM's _flashmla_C and " ..
        "_vllm_fa3_C and sglang-kernel's flashmla_ops do", refused("extension=" .. F.path .. "\ntorch=/x"))
      local missing = extension("missing", "-DOPTIONAL=3 -DMISSING")
      assert.equal("stub 1.0 does not load with PyTorch 2.11.0: " .. missing ..
        ": undefined symbol: symbol_of_another_pytorch", select(2, open(missing)))
      local whole = helper.read(missing)
      -- One byte short of what the loader maps, whatever the compiler puts behind that.
      local needs = 0
      for offset, bytes in helper.shell("readelf -lW " .. missing):gmatch("LOAD%s+0x(%x+)%s+0x%x+%s+0x%x+%s+0x(%x+)") do
        needs = math.max(needs, tonumber(offset, 16) + tonumber(bytes, 16))
      end
      helper.write(folder .. "cut.so", whole:sub(1, needs - 1))
      assert.matches(": " .. folder .. "cut.so: cut off, with %d+ of %d+ bytes$",
        refused(options(folder .. "cut.so")))
    end)

    it("refuses another PyTorch or another build of the package than the process has, and a PyTorch that is too old", function()
      local first, second = extension("inferred3", "-DOPTIONAL=3"), extension("inferred2", "-DOPTIONAL=2")
      compile("torch_stub.c", folder .. "old/libtorch_cuda.so", "-DSTUB_OLD -Wl,-soname,libtorch_old.so")
      helper.shell(("cp %sold/libtorch_cuda.so %sold/libtorch.so"):format(folder, folder))
      local function open_all(list)
        local code = { ("local provider = require('fewhead.device.provider')") }
        for _, given in ipairs(list) do
          code[#code + 1] = ("local p, err = provider.load(%q, nil, %q) print(p and 'opened' or err)"):format(plugin,
            ("extension=%s\ntorch=%s\npackage=stub"):format(given[1], given[2]))
        end
        return (helper.luajit(table.concat(code, "\n")):gsub("flashmla: ", ""))
      end
      local good, old = torch_folder(), folder .. "old"
      assert.equal(("PyTorch 2.9.1 in %s has no torch_call_dispatcher: wanted PyTorch 2.10 or later with CUDA\nopened\n" ..
        "torch: got %s, and this process has the PyTorch of %s\n" ..
        "stub does not load with PyTorch 2.11.0: %s registered _flashmla_C::sparse_prefill_fwd in this process already"):format(
        old, old, good, first), open_all { { first, old }, { first, good }, { first, old }, { second, good } })
      assert.matches("^PyTorch does not load: /nowhere/libtorch_cuda.so: ", open_all { { first, "/nowhere" } })
    end)

    -- Run a case on the plug-in, with host memory for a GPU's: the result of parity, and the outputs.
    local cpu
    setup(function() cpu = assert(device.open("cpu", { threads = 2 })) end)

    local function job_of(plug, state, problem, outputs, change)
      local call = assert(problem:bare_call("padded", outputs))
      if change then change(call) end
      local job = ffi.new("void *[1]")
      ffi.fill(text, C.FH_PROVIDER_TEXT)
      if plug.supports(state, info, call, text) ~= C.FH_OK then return nil, said() end
      if plug.prepare(state, info, call, job, text) ~= C.FH_OK then return nil, said() end
      return job[0], call
    end

    local function run(path, sizes, more, change)
      local plug, state, stub = plugin_for(path), assert(open(path, more)), ffi.load(path)
      stub.register_operator() -- another one's may stand there
      local torch_stub = ffi.load(torch_folder() .. "/libtorch_cuda.so")
      local before = torch_stub.stub_alive()
      local problem = assert(case(sizes):problem(cpu))
      local outputs = assert(problem:outputs())
      local job, call = job_of(plug, state, problem, outputs, change)
      if not job then
        assert.equal(before, torch_stub.stub_alive())
        return nil, call
      end
      local runs = stub.calls
      assert.equal(C.FH_OK, plug.run(state, job, call, text))
      assert.equal(runs + 1, stub.calls)
      assert.equal(C.FH_OK, plug.collect(state, job, call, text))
      local want = assert(problem:outputs())
      assert(problem:run("reference", want))
      local result = parity.compare(outputs, want)
      local seen = {
        q_stays = stub.seen_q == problem.q:data(), kv_stays = stub.seen_kv == problem.kv:data(),
        indices_stay = stub.seen_indices == problem.indices:data(), heads = tonumber(stub.seen_heads),
        lengths_stay = problem.topk_length and stub.seen_topk_length == problem.topk_length:data() or false,
        width = tonumber(stub.seen_width), intact = problem:intact(outputs),
        executed = tonumber(plug.executed_flops(state, job, call)),
      }
      plug.release(state, job)
      assert.equal(before, torch_stub.stub_alive()) -- all tensors, lists and guards were given back
      plug.close(state)
      return result, seen
    end

    local SIZES = { s_q = 3, h_q = 8, s_kv = 160, topk = 128, pattern = "uniform", seed = 3 }
    local function sizes(change)
      local s = {}
      for _, t in ipairs { SIZES, change or {} } do
        for key, v in pairs(t) do s[key] = v end
      end
      return s
    end

    it("gives the reference's results on any layout and writes nothing else", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      for _, layout in ipairs { "contiguous", "vllm", "strided", "offset" } do
        local result, seen = run(path, sizes { layout = layout })
        assert.equal("pass", result.status, layout)
        assert.is_true(seen.intact)
        assert.equal(64, seen.heads)
        assert.equal(2 * 1024 * 64 * 128 * 3, seen.executed)
      end
    end)

    it("copies nothing that FlashMLA takes as it is", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      local _, seen = run(path, sizes { h_q = 64 })
      assert.same({ true, true, true }, { seen.q_stays, seen.kv_stays, seen.indices_stay })
      _, seen = run(path, sizes { h_q = 8 })
      assert.same({ false, true, true }, { seen.q_stays, seen.kv_stays, seen.indices_stay })
      _, seen = run(path, sizes { h_q = 64, layout = "offset" })
      assert.same({ false, false, false }, { seen.q_stays, seen.kv_stays, seen.indices_stay })
    end)

    it("leaves q where it is in rows of 64 heads whose memory is there to the last", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      local driver = compile("torch_stub.c", folder .. "libcuda.so.1", "-DSTUB_DRIVER -Wl,-soname,libcuda.so.1")
      -- In a process of its own: what is called libcuda.so.1 is the driver to whoever asks.
      local out, status = helper.luajit(([[
        local F, case, device = require "fewhead.base.ffi", require "fewhead.case.case", require "fewhead.device.device"
        local ffi, C = F.ffi, F.C
        ffi.cdef %q
        ffi.cdef "uint64_t stub_room; const void *seen_q;"
        local driver, plugin = ffi.load %q, ffi.load %q
        local plug, text = plugin.fewhead_provider, ffi.new("char[?]", C.FH_PROVIDER_TEXT)
        local state, job = ffi.new "void *[1]", ffi.new "void *[1]"
        assert(plug.open(%q, state, text) == 0)
        local stub = ffi.load %q
        local info = ffi.new("fh_device_info", { kind = C.FH_DEVICE_CUDA, capability = 90 })
        local problem = case { s_q = 3, h_q = 8, s_kv = 160, topk = 128, pattern = "uniform", layout = "vllm" }
          :problem(device.open("cpu", { threads = 1 }))
        local call = problem:bare_call("padded", problem:outputs())
        local whole = 3 * 64 * 512 * 2
        for _, room in ipairs { whole, whole - 1 } do
          driver.stub_room = room
          assert(plug.prepare(state[0], info, call, job, text) == 0)
          print(stub.seen_q == problem.q:data())
          plug.release(state[0], job[0])
        end]]):format(DECLARATIONS, driver, copies[path], options(path), path))
      assert.same({ "true\nfalse", 0 }, { out, status })
    end)

    it("pads lists to a multiple of 128 and heads to 64 or 128", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      local result, seen = run(path, sizes { h_q = 72, topk = 100 })
      assert.same({ "pass", 128, 128 }, { result.status, seen.heads, seen.width })
      result, seen = run(path, sizes { h_q = 5, topk = 129 }, "padding=timed")
      assert.same({ "pass", 64, 256 }, { result.status, seen.heads, seen.width })
    end)

    it("runs 8, 16 and 32 heads where FlashMLA has a kernel for them and nobody asks for more", function()
      local path = extension("few", "-DOPTIONAL=3 -DFEW_HEADS")
      local result, seen = run(path, sizes { h_q = 8 })
      assert.same({ "pass", 8, true }, { result.status, seen.heads, seen.q_stays })
      result, seen = run(path, sizes { h_q = 9 })
      assert.same({ "pass", 16, false }, { result.status, seen.heads, seen.q_stays })
      result, seen = run(path, sizes { h_q = 8 }, "heads=64")
      assert.same({ "pass", 64 }, { result.status, seen.heads })
    end)

    it("clamps lengths that FlashMLA would follow out of the list", function()
      local path = extension("inferred2", "-DOPTIONAL=2")
      local function lengths(values)
        return function(call)
          for i, v in ipairs(values) do ffi.cast("int32_t *", call.topk_length)[i - 1] = v end
        end
      end
      local result, seen = run(path, sizes { lengths = 128 }, nil, lengths { 128, 1, 0 })
      assert.same({ "pass", true }, { result.status, seen.lengths_stay })
      result, seen = run(path, sizes { lengths = 128 }, nil, lengths { 2000000000, -1, 5 })
      assert.same({ "pass", false }, { result.status, seen.lengths_stay })
    end)

    it("asks FlashMLA which logarithm lse and max_logits are", function()
      assert.equal("pass", run(extension("base2", "-DOPTIONAL=2 -DLOGARITHM=2"), sizes()).status)
      local none, reason = run(extension("base10", "-DOPTIONAL=2 -DLOGARITHM=10"), sizes())
      assert.is_nil(none)
      assert.equal("_flashmla_C::sparse_prefill_fwd: lse of 128 equal keys: got 2.10721, wanted 4.85203 or 7", reason)
    end)

    it("refuses sinks and lengths where FlashMLA takes none", function()
      local path = extension("inferred0", "-DOPTIONAL=0")
      local result = run(path, sizes { sink = "none", lengths = "none" })
      assert.equal("pass", result.status)
      local none, reason = run(path, sizes { lengths = "none" })
      assert.is_nil(none)
      assert.equal("_flashmla_C::sparse_prefill_fwd of this package takes no attn_sink", reason)
      none, reason = run(path, sizes { sink = "none", lengths = 128 })
      assert.is_nil(none)
      assert.equal("_flashmla_C::sparse_prefill_fwd of this package takes no topk_length", reason)
    end)

    it("goes on after the operator raised, with its words", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      local plug, state, stub = plugin_for(path), assert(open(path)), ffi.load(path)
      stub.register_operator()
      local problem = assert(case(sizes()):problem(cpu))
      local outputs = assert(problem:outputs())
      local words = "CUDA error: an illegal memory access was encountered"
      stub.raise_next = words
      local job, reason = job_of(plug, state, problem, outputs)
      assert.is_nil(job)
      assert.equal("_flashmla_C::sparse_prefill_fwd raised: " .. words, reason)
      local call
      job, call = job_of(plug, state, problem, outputs)
      assert.truthy(job)
      stub.raise_next = words
      local status, printed = with_stderr(function() return tonumber(plug.run(state, job, call, text)) end)
      assert.equal(C.FH_ERR_DEVICE, status)
      assert.matches("Exception in aoti_torch: " .. words .. "\n", printed, 1, true)
      assert.equal("_flashmla_C::sparse_prefill_fwd raised an error; PyTorch's message is on standard error", said())
      assert.equal(C.FH_OK, tonumber(plug.run(state, job, call, text)))
      plug.release(state, job)
      plug.close(state)
    end)

    it("runs on GPUs that FlashMLA was made for only", function()
      local path = extension("inferred3", "-DOPTIONAL=3")
      local plug, state = plugin_for(path), assert(open(path))
      local call = assert(assert(case(sizes()):problem(cpu)):bare_call("padded"))
      local function reason(change)
        local other = ffi.new("fh_device_info", info)
        ffi.copy(other.name, "a device")
        for key, v in pairs(change) do other[key] = v end
        ffi.fill(text, C.FH_PROVIDER_TEXT)
        return tonumber(plug.supports(state, other, call, text)), said()
      end
      assert.same({ C.FH_OK, "" }, { reason {} })
      assert.same({ C.FH_OK, "" }, { reason { capability = 100 } })
      for _, change in ipairs { { capability = 80 }, { capability = 120 }, { kind = C.FH_DEVICE_CPU } } do
        local wanted = "device: got a device, wanted a CUDA device of compute capability 9.0 or 10.x"
        assert.same({ C.FH_ERR_UNSUPPORTED, wanted }, { reason(change) })
      end
      call.s_q = 2^25
      assert.same({ C.FH_ERR_UNSUPPORTED, "s_q: got 33554432, wanted at most 33554431: FlashMLA counts rows of 64 heads in " ..
        "32 bits" }, { reason {} })
      call.s_q, call.indices_stride = 3, -128
      assert.same({ C.FH_ERR_UNSUPPORTED, "indices_stride: got -128, and PyTorch has no negative strides" }, { reason {} })
    end)

    describe("with FlashAttention 3", function()
      local function fa3(name, flags) return extension(name, flags or "", "fa3_stub.c", "vllm_flash_attn/_vllm_fa3_C.abi3.so") end

      -- A call that it takes, of these sizes: no sink, no max_logits.
      local function taken(change)
        local s = sizes { sink = "none", max_logits = false }
        for key, v in pairs(change or {}) do s[key] = v end
        return s
      end

      -- Run a case: the result of parity, and what the operator saw; or nil and the reason why the plug-in took no job.
      local function run_fa3(change, edit)
        local path = fa3 "fa3"
        local plug, state, stub = plugin_for(path), assert(open(path)), ffi.load(path)
        stub.register_operator()
        local torch_stub = ffi.load(torch_folder() .. "/libtorch_cuda.so")
        local before = torch_stub.stub_alive()
        local problem = assert(case(taken(change)):problem(cpu))
        local outputs = assert(problem:outputs())
        local job, call = job_of(plug, state, problem, outputs, edit)
        if not job then
          assert.equal(before, torch_stub.stub_alive())
          plug.close(state)
          return nil, call
        end
        assert.equal(C.FH_OK, plug.run(state, job, call, text))
        assert.equal(C.FH_OK, plug.collect(state, job, call, text))
        local want = assert(problem:outputs())
        assert(problem:run("reference", want))
        local result = parity.compare(outputs, want)
        local seen = {
          q_stays = stub.seen_q_v == problem.q:data(), kv_stays = stub.seen_v == problem.kv:data(),
          indices_stay = stub.seen_table == problem.indices:data(), intact = problem:intact(outputs),
          rope = tonumber(stub.seen_rope), executed = tonumber(plug.executed_flops(state, job, call)),
        }
        plug.release(state, job)
        assert.equal(before, torch_stub.stub_alive()) -- all tensors, lists, boxes and guards were given back
        plug.close(state)
        return result, seen
      end

      it("says which operator it found and how it is called", function()
        local path = fa3 "fa3"
        assert.truthy(open(path))
        assert.equal("stub 1.0, PyTorch 2.11.0; _vllm_fa3_C::fwd(q, k, v, q_v, cu_seqlens_q, seqused_k, page_table); " ..
          "native heads, a sequence a row of q, pages of one KV row; at d_qk 512 with a rope part of zeros", said())
        local _, reason = open(path, "heads=64")
        assert.equal("options: got heads= for _vllm_fa3_C::fwd, which pads nothing", reason)
        _, reason = open(path, "padding=timed")
        assert.equal("options: got padding= for _vllm_fa3_C::fwd, which pads nothing", reason)
      end)

      it("refuses a schema that it does not know", function()
        local path = fa3("fa3-other", "'-DSCHEMA=\"(Tensor q, Tensor k, Tensor v) -> Tensor[]\"'")
        local state, reason = open(path)
        assert.is_nil(state)
        assert.equal(path .. ": its schema is not known here: fwd(Tensor q, Tensor k, Tensor v) -> Tensor[]", reason)
      end)

      it("gives the reference's results on any layout, with and without a rope part, and writes nothing else", function()
        for _, layout in ipairs { "contiguous", "vllm", "strided", "offset" } do
          for _, d_qk in ipairs { 512, 576 } do
            local result, seen = run_fa3 { layout = layout, d_qk = d_qk, h_q = 5 }
            assert.equal("pass", result.status, layout)
            assert.is_true(seen.intact)
            assert.equal(d_qk == 576 and 512 or 0, seen.rope)
            assert.equal(2 * 1088 * 64 * 128 * 3, seen.executed)
          end
        end
        assert.equal("pass", run_fa3({ h_q = 72, topk = 100, lse = false }).status)
      end)

      it("copies nothing that it takes as it is", function()
        local _, seen = run_fa3()
        assert.same({ true, true, true }, { seen.q_stays, seen.kv_stays, seen.indices_stay })
        _, seen = run_fa3 { layout = "offset" }
        assert.same({ false, false, true }, { seen.q_stays, seen.kv_stays, seen.indices_stay })
      end)

      it("leaves out what lists have before their end and no key is, clamps lengths, knows rows without keys", function()
        local function edited(list, lengths)
          return function(call)
            for i, v in ipairs(list) do ffi.cast("int32_t *", call.indices)[i - 1] = v end
            for i, v in ipairs(lengths) do ffi.cast("int32_t *", call.topk_length)[i - 1] = v end
          end
        end
        local result, seen = run_fa3({ lengths = 128 }, edited({ 5, -1, 160, 7, -2 }, { 128, 1, 128 }))
        assert.same({ "pass", false }, { result.status, seen.indices_stay })
        result, seen = run_fa3({ lengths = 128 }, edited({}, { 2000000000, -1, 0 }))
        assert.same({ "pass", true }, { result.status, seen.indices_stay })
        assert.equal("pass", run_fa3({ topk = 0 }).status)
      end)

      it("refuses what FlashAttention 3 has not, by name", function()
        local function reason(change, edit) return select(2, run_fa3(change, edit)) end
        assert.equal("attn_sink: FlashAttention 3 takes none where V has more columns than K", reason { sink = "normal" })
        assert.equal("max_logits: FlashAttention 3 returns none", reason { max_logits = true })
        assert.equal("s_q: got 268435456, wanted at most 268435455: FlashAttention counts rows of 8 heads in 32 bits",
          reason({}, function(call) call.s_q = 2^28 end))
        assert.equal("q_stride_h: got -512, and PyTorch has no negative strides",
          reason({}, function(call) call.q_stride_h = -512 end))
        local path = fa3 "fa3"
        local plug, state = plugin_for(path), assert(open(path))
        local call = assert(assert(case(taken()):problem(cpu)):bare_call("padded"))
        local other = ffi.new("fh_device_info", { kind = C.FH_DEVICE_CUDA, capability = 100 })
        ffi.copy(other.name, "a device")
        assert.equal(C.FH_ERR_UNSUPPORTED, tonumber(plug.supports(state, other, call, text)))
        assert.equal("device: got a device, wanted a CUDA device of compute capability 9.0", said())
        plug.close(state)
      end)

      it("goes on after the operator raised, with its words", function()
        local stub = ffi.load(fa3 "fa3")
        stub.raise_next = "no kernel image"
        assert.equal("_vllm_fa3_C::fwd raised: no kernel image", select(2, run_fa3()))
        assert.equal("pass", run_fa3().status)
      end)
    end)

    it("is loaded by the library as any plug-in", function()
      local box = ffi.gc(ffi.new("fh_provider *[1]"), C.fh_provider_free)
      assert(F.check(C.fh_provider_load(plugin, options(extension("inferred3", "-DOPTIONAL=3")), box)))
      local known = ffi.new("fh_provider_info", { struct_size = ffi.sizeof("fh_provider_info") })
      assert(F.check(C.fh_provider_get_info(box[0], known)))
      assert.equal("flashmla", ffi.string(known.name))
      assert.matches("^stub 1%.0, PyTorch 2%.11%.0; ", ffi.string(known.description))
    end)
  end)

  -- What is installed, with the kernels themselves.
  describe("on a GPU #gpu", function()
    local provider = require "fewhead.device.provider"

    local function check(found, reason, change)
      if not found then return pending(reason) end
      local dev = assert(device.open("cuda"))
      for _, d_qk in ipairs { 512, 576 } do
        for _, h_q in ipairs { 1, 8, 16, 32, 72 } do
          for _, layout in ipairs { "contiguous", "strided", "offset" } do
            local s = { s_q = 70, h_q = h_q, d_qk = d_qk, s_kv = 900, topk = 200, pattern = "uniform", holes = 0.1,
              sink = "none", layout = layout }
            for key, v in pairs(change) do s[key] = v end
            local problem = assert(case(s):problem(dev))
            local result = parity.check(problem, found, { against = "reference" })
            assert.same({ "pass" }, { result.status, result.reason }, ("d %d, %d heads, %s"):format(d_qk, h_q, layout))
          end
        end
      end
      found:free()
      dev:close()
    end

    it("FlashMLA agrees with the reference", function()
      local found, reason = provider.flashmla()
      check(found, reason, {})
    end)

    it("FlashAttention 3 agrees with the reference, lists with holes and all", function()
      local found, reason = provider.fa3()
      check(found, reason, { max_logits = false })
    end)
  end)
end)
