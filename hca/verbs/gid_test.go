package verbs_test

import (
	"net/netip"

	"ipoibd/hca"
)

// gid returns the GID of an address.
func gid(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }
