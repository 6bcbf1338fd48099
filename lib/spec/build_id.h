// What this program was built from.
#ifndef TD_SPEC_BUILD_ID_H
#define TD_SPEC_BUILD_ID_H

// "0.1.0": static text.
const char *td_version(void);
// 16 hex digits: a digest over the names and bytes of every source of the products. Equal sources
// have equal ids, whatever the folder, compiler or time. Static text.
const char *td_build_id(void);

#endif
