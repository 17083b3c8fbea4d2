// Package join has the rules by which received TCP segments and UDP datagrams of one flow
// become one large packet. The package is pure. It is the counterpart of package segment:
// cutting the large packet yields the packets that were joined.
//
// They must be identical to the last bit, because routers, bridges and packet filters may see
// either form. That is why nearly every field must be equal. There are only two exceptions: the
// IP identification of a datagram with DF, which has no meaning (RFC 6864 section 4.1), and
// padding behind a packet, which is cut off.
//
// The rules follow inet_gro_receive, ipv6_gro_receive, tcp_gro_receive and
// udp_gro_receive_segment (Linux 6.18), except for the differences below:
//
//   - IPv4 without options, or IPv6 without extension headers; not a fragment; not sent to a
//     group.
//   - Addresses, ports, type of service with ECN, TTL, DF and flow label are equal. The IPv4
//     identification rises by one with each segment, or stays the same if DF is set.
//   - TCP: with payload; ACK set, PSH permitted, ECE in all or none, and no other flag. Equal
//     acknowledgement number, window, urgent pointer and options, timestamps included;
//     consecutive sequence numbers.
//   - UDP: with payload and checksum.
//   - All payloads of a run have the same length, except that the last may be shorter. A
//     shorter payload ends the run, and so does PSH.
//   - The checksums of a packet are correct, and a zero is in the form that cutting yields.
//
// # Differences from Linux
//
// The tests of package ud/coalesce compare with the kernel's GRO:
//
//   - Linux joins a last segment with FIN. Here it stays alone: it comes once in a connection.
//   - Linux joins segments whose urgent pointers differ, if URG is clear, and so loses the values.
//   - Linux joins packets that have no DF and equal identifications. Cutting them would yield
//     rising ones, and without DF the identification matters (RFC 6864).
//   - Linux joins some packets with IPv6 extension headers. They are rare, and each would have to
//     be parsed for every segment.
//   - Linux joins datagrams around one that it cannot join, such as one of another flow label, or
//     one without a checksum, and so changes their order. Here such a datagram ends the run.
//   - Linux does not join datagrams that Ethernet has padded. Here the padding is cut off, since
//     a packet of IPoIB has none.
package join
