// Package ipoib is the codec of IP over InfiniBand in UD mode (RFC 4391): the
// encapsulation header, the 20-byte link-layer address, the multicast mapping,
// and the bodies that carry link-layer addresses, which are ARP and IPv6
// Neighbour Discovery (RFC 4861). It is pure: bytes in, bytes out.
//
// # What is on the wire
//
// The payload of a UD send is a message: a header of 4 bytes, then an IPv4,
// IPv6, ARP or RARP packet without padding.
//
//	[EtherType 2][reserved 2][packet]
//
// A link-layer address is what ARP and Neighbour Discovery resolve to. It is
// not an Ethernet address, so the bodies have two forms: the Ethernet form that
// the host sees and the IPoIB form that the fabric sees.
//
//	                Ethernet form          IPoIB form
//	address         6 bytes                20 bytes: flags, QPN, GID
//	ARP             type 1, 28 bytes       type 32, 56 bytes
//	ND option       8 bytes (length 1)     24 bytes (length 3)
//
// An ARP body has a fixed layout and is parsed into a struct and made again from
// one ([ARP], [EtherARP]). A Neighbour Discovery message is a list of options
// of which only the link-layer addresses concern the link: [TranslateND]
// rewrites these and passes everything else through, so options that this
// package has never heard of survive.
//
// # Trust
//
// Every parser takes bytes of strangers. It checks each length before it reads,
// returns an error that wraps one of the sentinels of this package, never
// panics, and keeps no reference to its input but where it says so. ND messages
// that RFC 4861 has a receiver discard are refused here already, so that what
// is learnt from a message is what its receiver takes from it.
//
// # Limits
//
// Neighbour Discovery is translated only directly behind the fixed IPv6 header. Behind
// extension headers [HidesND] finds it, so that the caller can drop it. It is not found
// inside ESP and IPComp, where only a sender that shares a security association with
// the receiver can put it. A message signed by SEND (RFC 3971) loses its signature's
// validity when an address is rewritten. ARP is for IPv4 only. Inverse Neighbour
// Discovery (RFC 3122) is not translated.
package ipoib
