#include "decode_node/decode_main.h"

int main(int argc, char** argv) {
  return tandem::node::node_main(argc, argv, tandem::decode::decode_main());
}
