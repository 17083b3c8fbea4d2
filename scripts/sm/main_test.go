package sm

import "ipoibd/hca"

import "net/netip"

func mgid(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }
