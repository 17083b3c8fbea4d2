// Agent is the first program of a guest. As process 1 it starts a second
// instance of itself and then only reaps orphans. The second instance prepares
// the guest (file systems, modules in the order of their names, sysctls,
// loopback) and serves the requests of package protocol on the virtio serial
// port until the machine ends.
//
// Every process that it starts leads its own process group, has no standard
// input, and inherits only PATH. Output is forwarded as it arrives.
//
// The agent loads the modules in the guest's directory /modules.
package main
