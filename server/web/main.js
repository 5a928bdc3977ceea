// Begins. Whatever draws has registered itself by now; the order of the files is that of embed.cmake.
import {grow} from './composer.js';
import {start} from './state.js';

start();
grow();
