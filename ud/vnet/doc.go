// Package vnet is the codec of struct virtio_net_hdr (linux/virtio_net.h, and
// virtio 1.2 section 5.1.6), the header that precedes every frame of a TAP
// opened with IFF_VNET_HDR. It also checks the header of a frame from the host, and
// completes partial checksums. It is pure and allocates nothing.
//
// The header describes offloads: the host may request that a checksum be filled
// in or that a large frame be segmented; towards the host it may state that a
// checksum was verified.
//
//	[flags 1][gso_type 1][hdr_len 2][gso_size 2][csum_start 2][csum_offset 2]
//
// Its integers are in the byte order of the host: a TAP uses that order unless
// TUNSETVNETLE or TUNSETVNETBE changes it. The two bytes num_buffers of the
// longer struct virtio_net_hdr_mrg_rxbuf are absent: a TAP uses a header of 10
// bytes unless TUNSETVNETHDRSZ changes it.
package vnet
