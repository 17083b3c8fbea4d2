// Package segment cuts a large TCP or UDP frame into segments, as the kernel's GSO and the
// large send of an HCA do. It computes the headers of each segment; the payload stays where
// it is. It is pure: no I/O, no clock, no allocation.
//
// # Use
//
// [Plan.Cut] reads the headers of a large frame. Then, for each segment, the caller adds
// the pieces of its payload ([Plan.Payload]) to a [Sum], and [Plan.Put] writes its headers.
// [Plan.Whole] makes a plan of one segment for a message whose checksums are missing.
//
//	field                        | in segment i of n, counted from 0
//	IPv4 total length, IPv6      |
//	payload length, UDP length   | those of the segment
//	IPv4 identification          | that of the frame + i
//	TCP sequence number          | that of the frame + i * MSS
//	TCP FIN, PSH                 | as in the frame if i = n-1, else clear
//	TCP CWR                      | as in the frame if i = 0, else clear (RFC 3168, 6.1.2: the answer to one ECE)
//	TCP URG, urgent pointer      | clear once the segment starts at or after the urgent data's end, else counted
//	                             | from the segment
//	checksums of IPv4, TCP, UDP  | computed; those of the frame are ignored, but see below
//	all others, options included | as in the frame
//
// # Checksums
//
// A checksum is a ones' complement sum, so partial sums can be added: the fields that all
// segments share are summed once, and each segment adds those that differ and its payload.
// The payload must be read once, because the frame's own checksum does not yield its segments'
// checksums.
//
// With a routing header, the checksum covers the final destination (RFC 8200, 8.1). The place of
// that address depends on the type of the routing header, so the sum of the addresses is derived
// from the frame's checksum field instead. That field must hold the sum of the frame's
// pseudo-header, as the kernel leaves it for the device (CHECKSUM_PARTIAL).
//
// # Differences from Linux
//
// The tests of package ud/vnet compare with the kernel's GSO. Except for the following, the
// segments are bit for bit the same:
//
//   - Linux repeats URG and the urgent pointer in each segment. Since the pointer counts from the
//     segment's own sequence number, that would declare other data urgent. Its TCP never sends
//     such frames.
//   - Linux adds the fields of a segment to the frame's checksum field, so an error in that field
//     recurs in each segment. Here the field is ignored, as an HCA ignores it.
//   - Linux also cuts a frame with SYN or RST, and a fragment. No host sends one, and cutting it
//     would multiply connection requests or yield fragments that overlap.
//
// # Limits
//
// [Plan.Cut] refuses fragments, IPv6 extension headers other than hop-by-hop options, destination
// options and routing headers, protocols other than TCP and UDP, headers that are inconsistent or
// longer than [MaxHeader], and SYN or RST in a frame of several segments. [Plan.Whole] fills in
// no checksum behind a routing header.
package segment
