// Manifests of recovery checkpoints: which files a folder has, with sizes and digests, and what
// they are. A folder exists once its manifest does; the manifest is put last. Blocking; any thread.
#ifndef TD_CONTROLLERS_TRAIN_MANIFEST_H
#define TD_CONTROLLERS_TRAIN_MANIFEST_H

#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "proto/journal.pb-c.h"
#include "proto/worker.pb-c.h"

// Writes FOLDER/journal.state (the journal's state, for a new journal made from checkpoints) and
// then FOLDER/manifest.json naming it and files. *digest: of the manifest's bytes, for CHECKPOINT.
enum td_rc td_manifest_write(const char *folder, const Tandem__Journal__Checkpoint *checkpoint,
                             const Tandem__Worker__Saved *saved, const struct td_buf *journal_state,
                             uint64_t *digest, struct td_err *err) TD_MUST_CHECK;
// Checks the manifest's bytes against digest and every file against the manifest. The message names
// the file.
enum td_rc td_manifest_verify(const char *folder, uint64_t digest,
                              struct td_err *err) TD_MUST_CHECK;

#endif
