// Flat buffers as safetensors files by Hugging Face tensor names, and whole model folders.
#ifndef TD_WORKERS_MODEL_HF_H
#define TD_WORKERS_MODEL_HF_H

#include "workers/model/model.h"

// A flat buffer whose tensors are called prefix + HF name in a file ("" for weights).
struct td_hf_flat {
    const char *prefix;
    struct td_tensor flat;
};

// Writes count flat buffers into one file, whole or not at all. dtype F32, BF16 or F16; a number
// that is not finite in it is TD_EINVAL naming the tensor.
enum td_rc td_hf_save(struct td_model *m, const char *path, enum td_dtype dtype,
                      const struct td_hf_flat *flats, int count, struct td_err *err) TD_MUST_CHECK;
// Fills count flat buffers from one file, as strictly as td_weights_load.
enum td_rc td_hf_load(struct td_model *m, const char *path, const struct td_hf_flat *flats,
                      int count, struct td_err *err) TD_MUST_CHECK;

// Writes a folder that transformers loads: model.safetensors, config.json (source_dir's, with dtype
// and both spellings of RoPE), and source_dir's generation_config.json, tokenizer and template
// files where it has them. dtype: of the file. dir is made; files in it are replaced.
enum td_rc td_hf_export(struct td_model *m, const struct td_tensor *flat, const char *dir,
                        const char *source_dir, enum td_dtype dtype,
                        struct td_err *err) TD_MUST_CHECK;

#endif
