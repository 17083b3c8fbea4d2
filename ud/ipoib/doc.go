// Package ipoib is the codec of IP over InfiniBand in UD mode (RFC 4391): the
// encapsulation header, the 20-byte link-layer address, the multicast mapping,
// and the bodies that contain link-layer addresses: ARP and IPv6 Neighbour
// Discovery (RFC 4861). It is pure: bytes in, bytes out.
//
// # Wire format
//
// The payload of a UD send is a message: a header of 4 bytes, then an IPv4,
// IPv6, ARP or RARP packet without padding.
//
//	[EtherType 2][reserved 2][packet]
//
// ARP and Neighbour Discovery resolve IP addresses to link-layer addresses,
// which are not Ethernet addresses here. The bodies therefore have two forms:
// the Ethernet form for the host and the IPoIB form for the fabric.
//
//	                Ethernet form          IPoIB form
//	address         6 bytes                20 bytes: flags, QPN, GID
//	ARP             type 1, 28 bytes       type 32, 56 bytes
//	ND option       8 bytes (length 1)     24 bytes (length 3)
//
// An ARP body has a fixed layout, so it is parsed into a struct and encoded from
// one ([ARP], [EtherARP]). A Neighbour Discovery message contains a list of
// options, and only the link-layer addresses depend on the link: [TranslateND]
// rewrites these and passes everything else through, including options unknown
// to this package.
//
// # Trust
//
// Every parser takes untrusted input. It checks each length before it reads,
// returns an error that wraps one of this package's sentinels, never panics,
// and keeps no reference to its input unless its comment says so. Parsers
// refuse ND messages that RFC 4861 tells receivers to discard, so that we learn
// nothing from a message that its receiver ignores.
//
// # Limits
//
// Neighbour Discovery is translated only directly behind the fixed IPv6 header.
// [HidesND] finds it behind extension headers, so that the caller can drop the packet.
// It cannot look inside ESP and IPComp, but there only a sender that shares a security
// association with the receiver can place an ND message. Rewriting an address
// invalidates the signature of SEND (RFC 3971). ARP is for IPv4 only. Inverse
// Neighbour Discovery (RFC 3122) is not translated.
package ipoib
