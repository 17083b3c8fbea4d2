package bpf

//go:generate -command bpf2go go tool -modfile=../tools/go.mod bpf2go -tags linux -target bpfel -cc clang -strip llvm-strip -go-package bpf -cflags "-O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu"
//go:generate bpf2go filter filter.c
//go:generate bpf2go steer steer.c
//go:generate bpf2go -type num_key -type target_key -type source_key -type flows fast fast.c -- -mcpu=v3
