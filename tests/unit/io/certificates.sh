#!/bin/sh
# certificates.sh FOLDER: makes two authorities (ca, other-ca), and of them a certificate for the
# loopback (server), one for a member (member-7) and one that a server must not accept (stranger).
set -eu
cd "$1"
curve='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' >names
for ca in ca other-ca; do
  openssl req -x509 $curve -days 30 -subj "/CN=$ca" -keyout $ca.key -out $ca.pem
done
leaf() {
  openssl req $curve -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days 30 -extfile names -out "$1.pem"
}
leaf server ca
leaf member-7 ca
leaf stranger other-ca
printf -- '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n' >damaged.pem
printf 'nothing\n' >text.pem
