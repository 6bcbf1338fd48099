// Certificates for rpc.h: PEM files are read at once and given to the core. Loop thread.
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/io/rpc_int.h"

enum { PEM_BYTES_MAX = 1 << 20 };

struct pems {
    struct td_buf ca, cert, key;
};

static void pems_fini(struct pems *pems) {
    if (pems->key.data) {
        explicit_bzero(pems->key.data, pems->key.len);
    }
    td_buf_fini(&pems->ca);
    td_buf_fini(&pems->cert);
    td_buf_fini(&pems->key);
}

static enum td_rc read_pem(const char *what, const char *path, struct td_buf *out,
                           struct td_err *err) {
    if (!path) {
        return TD_OK;
    }
    if (td_file_read(path, PEM_BYTES_MAX, out, err) != TD_OK) {
        td_err_in(err, "TLS %s", what);
        return td_fail(err, TD_EINVAL, "%s", err ? err->msg : "");
    }
    if (!strstr(td_buf_str(out), "-----BEGIN ")) {
        return td_fail(err, TD_EINVAL, "TLS %s %s: not a PEM file", what, path);
    }
    return TD_OK;
}

static enum td_rc read_pems(const struct td_rpc_tls *tls, struct pems *out, struct td_err *err) {
    if (!tls->cert_file != !tls->key_file) {
        return td_fail(err, TD_EINVAL, "TLS needs the certificate and its key, or neither");
    }
    enum td_rc rc = read_pem("CA", tls->ca_file, &out->ca, err);
    rc = rc != TD_OK ? rc : read_pem("certificate", tls->cert_file, &out->cert, err);
    rc = rc != TD_OK ? rc : read_pem("key", tls->key_file, &out->key, err);
    return rc;
}

enum td_rc td_rpc_server_credentials(const struct td_rpc_tls *tls, grpc_server_credentials **out,
                                     struct td_err *err) {
    if (!tls) {
        *out = grpc_insecure_server_credentials_create();
        return TD_OK;
    }
    struct pems pems = {0};
    enum td_rc rc = tls->cert_file
                        ? read_pems(tls, &pems, err)
                        : td_fail(err, TD_EINVAL, "a server with TLS needs a certificate");
    if (rc == TD_OK) {
        grpc_ssl_pem_key_cert_pair pair = {td_buf_str(&pems.key), td_buf_str(&pems.cert)};
        bool mutual = tls->ca_file != NULL;
        *out = grpc_ssl_server_credentials_create_ex(
            mutual ? td_buf_str(&pems.ca) : NULL, &pair, 1,
            mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            NULL);
    }
    pems_fini(&pems);
    return rc;
}

enum td_rc td_rpc_channel_credentials(const struct td_rpc_tls *tls, grpc_channel_credentials **out,
                                      struct td_err *err) {
    if (!tls) {
        *out = grpc_insecure_credentials_create();
        return TD_OK;
    }
    struct pems pems = {0};
    enum td_rc rc = read_pems(tls, &pems, err);
    if (rc == TD_OK) {
        grpc_ssl_pem_key_cert_pair pair = {td_buf_str(&pems.key), td_buf_str(&pems.cert)};
        *out = grpc_ssl_credentials_create_ex(tls->ca_file ? td_buf_str(&pems.ca) : NULL,
                                              tls->cert_file ? &pair : NULL, NULL, NULL);
    }
    pems_fini(&pems);
    return rc;
}
